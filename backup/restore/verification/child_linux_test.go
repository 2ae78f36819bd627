package verification

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// manners describes the priorities and memory use of a process.
type manners struct {
	Status int
	Heap   uint64 // highest sample in bytes
	Nice   []int  // final nice value of each thread
	Idle   []bool // whether each thread has idle I/O priority
}

func init() {
	children["child-measured"] = func() int {
		heap := mostHeap()
		is := manners{Status: verifyInThisProcess(io.Discard)}
		is.Heap = heap()
		threads, err := os.ReadDir("/proc/self/task")
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			priority, _ := unix.Getpriority(unix.PRIO_PROCESS, id)
			disk, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(id), 0)
			is.Nice, is.Idle = append(is.Nice, 20-priority), append(is.Idle, disk>>13 == 3)
		}
		if err != nil || json.NewEncoder(os.Stdout).Encode(is) != nil {
			return 1
		}
		return 0
	}
}

// mostHeap starts sampling the heap size. The returned function returns the highest sample.
func mostHeap() (most func() uint64) {
	ctx, stop := context.WithCancel(context.Background())
	told := make(chan uint64)
	go func() {
		var highest uint64
		var now runtime.MemStats
		for ticker := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			runtime.ReadMemStats(&now)
			highest = max(highest, now.HeapInuse)
		}
		told <- highest
	}()
	return func() uint64 { stop(); return <-told }
}

func TestInChild_hasLowPriorityAndLittleMemory(t *testing.T) {
	const rows = 32 << 10
	url := "file://" + t.TempDir()
	full, size := keepFull(t, url, rows)
	child := exec.CommandContext(t.Context(), os.Args[0], "child-measured", url, filepath.Join(t.TempDir(), "scratch"), "1", full.Name(), strconv.Itoa(rows))
	child.Stderr = t.Output()
	output, err := child.Output()
	require.NoError(t, err)
	var is manners
	require.NoError(t, json.Unmarshal(output, &is))
	require.Zero(t, is.Status)
	t.Logf("%d MiB of heap for a database of %d MiB", is.Heap>>20, size>>20)
	assert.Less(t, is.Heap, uint64(16<<20), "for a database of %d bytes", size)
	for i := range is.Nice {
		assert.Equal(t, 19, is.Nice[i], "every thread is nice")
		assert.True(t, is.Idle[i], "and waits for the disk")
	}
}
