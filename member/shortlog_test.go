package member_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/datadir/datadirtest"
)

// etcd cuts a torn log off, and would take it once enough failed starts have made it longer.
func TestALogThatEndsBeforeItsDatabaseIsRefusedEachTime(t *testing.T) {
	for lost := 1; lost <= 3; lost++ {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			dir, segment := born(t)
			_, ends := datadirtest.Entries(t, segment)
			require.NoError(t, os.Truncate(segment, ends[len(ends)-1-lost]))
			for range 2 {
				b := newBench(t, dir)
				require.ErrorContains(t, b.Open(soon(t)), "while the database holds what came until")
				opened, _ := b.Close()
				assert.True(t, opened, "the next start must not take it for good")
			}
		})
	}
}

// What has not reached the database is in the log, as after a kill.
func TestALogThatEndsAfterItsDatabaseIsTaken(t *testing.T) {
	dir, segment := born(t)
	_, ends := datadirtest.Entries(t, segment)
	require.NoError(t, os.Truncate(segment, ends[len(ends)-1]))
	b := newBench(t, dir)
	require.NoError(t, b.Open(soon(t)))
	_, err := b.Close()
	require.NoError(t, err)
}

// Nothing is missing at the log's end, and the database has all that is damaged. etcd would cut the log off and start, and
// wait for a leader until it had failed often enough.
func TestALogThatIsDamagedBelowItsDatabaseIsRefusedBeforeEtcdStarts(t *testing.T) {
	dir, segment := born(t)
	begins, _ := datadirtest.Entries(t, segment)
	middle := len(begins) / 2
	file, err := os.OpenFile(segment, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, 8), begins[middle])
	require.NoError(t, errors.Join(err, file.Close()))
	for range 2 {
		b := newBench(t, dir)
		require.ErrorContains(t, b.Open(soon(t)), fmt.Sprintf("is damaged at position %d, behind index %d", begins[middle], middle))
		assert.NotContains(t, b.log.String(), "starting an etcd server")
		opened, _ := b.Close()
		assert.True(t, opened, "the next start must not take it for good")
	}
}
