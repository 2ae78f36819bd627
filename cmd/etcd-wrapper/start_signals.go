package main

import (
	"os"
	"syscall"
	"time"

	"etcd-wrapper/lifecycle"
)

// echo is how close together two equal signals count as one. timeout(1) signals its child and then the child's whole
// process group; without this its one wish would force the end.
const echo = 20 * time.Millisecond

// forward hands signals to the machine. One that comes when that has been driven to its end urges what is still done to
// end, too.
func forward(signals <-chan os.Signal, driver *lifecycle.Driver, driven <-chan struct{}, urge func(), ended <-chan struct{}) {
	var last os.Signal
	var at time.Time
	for {
		select {
		case received := <-signals:
			number, ok := received.(syscall.Signal)
			if ok && (received != last || time.Since(at) > echo) {
				driver.Signal(number)
				urgeAfter(driven, urge)
			}
			last, at = received, time.Now()
		case <-ended:
			return
		}
	}
}

func urgeAfter(driven <-chan struct{}, urge func()) {
	select {
	case <-driven:
		urge()
	default:
	}
}
