package recovery

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/bootstrap/datadir"
	"etcd-wrapper/recovery/peers"
)

// Another member has revisions that the store lacks, and uploads them slowly.
func TestRestoreWaitsForUploadsOfOtherVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		listing PeerState
		request *Request
	}{
		"all ask for the latest":    {peers.Asking, &Request{Target: archive.Target{}, ID: "drop"}},
		"none has data of use":      {peers.Gone, nil},
		"none has data but a spool": {peers.Founding, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := ofThree(t)
			other := newWorld(t)
			other.archive = w.archive
			require.NoError(t, os.Rename(w.member.DataDir, other.member.DataDir))
			other.put("acknowledged")
			o.listing, o.late, w.options.Request = test.listing, true, test.request
			pauses := w.inPause(3, func() {
				other.backUp()
				o.late = false
			})
			require.NoError(t, w.run())
			assert.Equal(t, 3, *pauses)
			assert.True(t, o.brought, "this member has nothing to bring")
			w.requireKeys("acknowledged", "key")
		})
	}
}

func TestMemberReportsItsUploadAfterwards(t *testing.T) {
	w, o := ofThree(t)
	o.listing, w.options.Request = peers.Asking, &Request{Target: archive.Target{Revision: 2}, ID: "back"}
	flushed := 0
	w.options.Flush = func(context.Context, string, datadir.Position) error {
		assert.False(t, o.brought)
		flushed++
		return nil
	}
	require.NoError(t, w.run())
	assert.True(t, o.brought)
	assert.Equal(t, 1, flushed)
}

// The upload also fails if another member has already uploaded everything.
func TestFailedUploadIsAWarningIfRevisionsAreMissing(t *testing.T) {
	for name, lacks := range map[string]bool{"the store has all of them": false, "the store lacks one": true} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.options.Request = &Request{ID: "back"}
			if lacks {
				w.put("more")
			}
			w.options.Flush = func(context.Context, string, datadir.Position) error {
				return errors.New("another member writes the backups")
			}
			require.NoError(t, w.run())
			assert.Equal(t, lacks, strings.Contains(w.log.String(), "not all revisions of the volume could be uploaded"))
			assert.Equal(t, !lacks, strings.Contains(w.log.String(), "has every revision of the volume"))
			assert.Contains(t, w.log.String(), "another member writes the backups")
		})
	}
}
