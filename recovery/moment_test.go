package recovery

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of a volume that was lost nobody knows when it ended.
func TestHowLongBeforeTheEndOfABrokenVolumeTheBackupsEndIsTold(t *testing.T) {
	for name, of := range map[string]struct {
		gap    time.Duration
		happen func(*world)
		says   string
	}{
		"a moment":                 {730 * time.Millisecond, (*world).spoil, "is lost; that is at most 0.8 s before the end, when etcd last wrote to the volume"},
		"a moment, with revisions": {730 * time.Millisecond, func(w *world) { w.put("a", "b") }, "; 2 revisions are lost; that is at most 0.8 s before the end"},
		"nothing":                  {-time.Minute, (*world).spoil, "that is at most 0.0 s before the end"},
		"hours":                    {3*time.Hour + time.Millisecond, (*world).spoil, "that is at most 3h0m1s before the end"},
		"not known":                {time.Second, func(w *world) { require.NoError(w.t, os.RemoveAll(w.member.DataDir)) }, "was not in the store is lost\""},
		"log is gone": {time.Second, func(w *world) {
			require.NoError(w.t, os.RemoveAll(filepath.Join(w.member.DataDir, "member", "wal")))
			w.spoil()
		}, "was not in the store is lost\""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.used()
			head, err := w.archive.Head(t.Context(), 1)
			require.NoError(t, err)
			of.happen(w)
			w.writtenAt(head.Full.Time.Add(of.gap))
			_, err = w.recovery().Run(t.Context(), w.member, func(context.Context) error {
				if _, err := os.Stat(w.member.DataDir); err != nil {
					return nil
				}
				return errors.New("a page is damaged")
			})
			require.NoError(t, err)
			assert.Contains(t, w.log.String(), of.says)
		})
	}
}

// writtenAt is when etcd last wrote to its log.
func (w *world) writtenAt(at time.Time) {
	w.t.Helper()
	segments, err := filepath.Glob(filepath.Join(w.member.DataDir, "member", "wal", "*.wal"))
	require.NoError(w.t, err)
	for _, segment := range segments {
		require.NoError(w.t, os.Chtimes(segment, at, at))
	}
}
