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

// forward hands signals to the machine until the run has ended.
func forward(signals <-chan os.Signal, driver *lifecycle.Driver, ended <-chan struct{}) {
	var last os.Signal
	var at time.Time
	for {
		select {
		case received := <-signals:
			number, ok := received.(syscall.Signal)
			if ok && (received != last || time.Since(at) > echo) {
				driver.Signal(number)
			}
			last, at = received, time.Now()
		case <-ended:
			return
		}
	}
}
