package recovery

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"etcd-wrapper/recovery/peers"
)

// It is locked, or the disk has an error: nobody may take it for a member that had barely begun.
func TestAVolumeThatCannotBeReadIsNoEmptyOne(t *testing.T) {
	w, o := ofThree(t)
	held, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(t, err)
	defer held.Close()
	_, err = w.recovery().Run(t.Context(), w.member, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "cannot tell how far the data")
	assert.Empty(t, w.asides())
	assert.Empty(t, o.changes)
}

// A quick look may pass over that.
func TestAVolumeOfWhichNotAllCanBeReadIsBroken(t *testing.T) {
	w, o := ofThree(t)
	w.spoil()
	o.listing = peers.Unknown
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.options.Pause = func(context.Context, int) { cancel() }
	_, err := w.recovery().Run(ctx, w.member, func(context.Context) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, peers.Ruins, o.holds)
	assert.Empty(t, w.asides())
}
