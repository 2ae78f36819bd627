//go:build bench

package bench_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/harness"
)

// binarySize measures the shipped binary, which includes etcd, its tools, and clients for four kinds of stores.
func binarySize(t *testing.T) []row {
	size := func(path string) series {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return series{float64(info.Size()) / 1e6}
	}
	return []row{row{what: "binary, MB", plain: size(plainProgram), wrapper: size(harness.Program)}.neverMoreThan(45, "MB")}
}
