//go:build bench

package bench_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// resultLine matches a line of `go test -bench -benchmem` and captures the benchmark's name, the nanoseconds per
// operation and the allocations per operation.
var resultLine = regexp.MustCompile(`Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op\s+\d+ B/op\s+(\d+) allocs/op`)

// machineStep runs the benchmarks of package lifecycle, which measure single steps of the state machine.
func machineStep(t *testing.T) []row {
	t.Helper()
	output, err := goTool("test", "-run=^$", "-bench=Step|Turn", "-benchmem", "-count=5", "etcd-wrapper/lifecycle")
	require.NoError(t, err, output)
	took, allocations := map[string]series{}, map[string]string{}
	for _, result := range resultLine.FindAllStringSubmatch(output, -1) {
		name := result[1]
		nanoseconds, err := strconv.ParseFloat(result[2], 64)
		require.NoError(t, err)
		took[name], allocations[name] = append(took[name], nanoseconds/1000), result[3]
	}
	step := fmt.Sprintf("one step of the state machine, %s allocations, µs", allocations["Step"])
	turn := fmt.Sprintf("one step including the goroutine, timer and snapshot that it requests, %s allocations, µs", allocations["Turn"])
	return []row{row{what: step, wrapper: took["Step"]}.atMost(2, "µs"), {what: turn, wrapper: took["Turn"]}}
}
