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

// usage describes the exit status, the memory use and the priorities of a process.
type usage struct {
	Status int
	Heap   uint64 // highest sample in bytes
	Nice   []int  // final nice value of each thread
	Idle   []bool // whether each thread has idle I/O priority
}

func init() {
	children["child-measured"] = func() int {
		heap := mostHeap()
		measured := usage{Status: verifyInThisProcess(io.Discard)}
		measured.Heap = heap()
		threads, err := os.ReadDir("/proc/self/task")
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			priority, _ := unix.Getpriority(unix.PRIO_PROCESS, id)
			disk, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(id), 0)
			measured.Nice, measured.Idle = append(measured.Nice, 20-priority), append(measured.Idle, disk>>13 == 3)
		}
		if err != nil || json.NewEncoder(os.Stdout).Encode(measured) != nil {
			return 1
		}
		return 0
	}
}

// mostHeap starts sampling the heap size. The returned function returns the highest sample.
func mostHeap() (most func() uint64) {
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan uint64)
	go func() {
		var highest uint64
		var now runtime.MemStats
		for ticker := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			runtime.ReadMemStats(&now)
			highest = max(highest, now.HeapInuse)
		}
		result <- highest
	}()
	return func() uint64 { stop(); return <-result }
}

func TestInChild_hasLowPriorityAndLittleMemory(t *testing.T) {
	const rows = 32 << 10
	url := "file://" + t.TempDir()
	full, size := keepFull(t, url, rows)
	child := exec.CommandContext(t.Context(), os.Args[0], "child-measured", url, filepath.Join(t.TempDir(), "scratch"), "1", full.Name(), strconv.Itoa(rows))
	child.Stderr = t.Output()
	output, err := child.Output()
	require.NoError(t, err)
	var measured usage
	require.NoError(t, json.Unmarshal(output, &measured))
	require.Zero(t, measured.Status)
	t.Logf("%d MiB of heap for a database of %d MiB", measured.Heap>>20, size>>20)
	assert.Less(t, measured.Heap, uint64(16<<20), "for a database of %d bytes", size)
	for i := range measured.Nice {
		assert.Equal(t, 19, measured.Nice[i], "every thread must have the lowest CPU priority")
		assert.True(t, measured.Idle[i], "every thread must have idle I/O priority")
	}
}
