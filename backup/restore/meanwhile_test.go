package restore

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
)

func TestRowsOfEverySizeComeInOrderThoughTheyAreReadIntoTheSameMemory(t *testing.T) {
	var memory []byte
	sizes := []int{0, 1, batchSize, 10, 3 * batchSize, batchSize - 8, 7, 1000}
	read := func(_ context.Context, row func(format.Row) error) (Changes, error) {
		for n := range 50 * len(sizes) {
			memory = append(memory[:0], bytes.Repeat([]byte{byte(n)}, sizes[n%len(sizes)])...)
			if err := row(format.Row{Key: revisionKey(int64(n + 1)), Value: memory}); err != nil {
				return Changes{}, err
			}
		}
		return Changes{Compacted: 3}, nil
	}
	n := 0
	changed, err := insertMeanwhile(t.Context(), read, func(row format.Row) error {
		require.Equal(t, revisionKey(int64(n+1)), row.Key)
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(n)}, sizes[n%len(sizes)]), row.Value), "row %d", n)
		n++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 50*len(sizes), n)
	require.EqualValues(t, 3, changed.Compacted)
}

func TestReadingEndsWhenARowCannotBeInserted(t *testing.T) {
	refused := errors.New("refused")
	endless := func(_ context.Context, row func(format.Row) error) (Changes, error) {
		for n := int64(1); ; n++ {
			if err := row(format.Row{Key: revisionKey(n), Value: make([]byte, 1000)}); err != nil {
				return Changes{}, err
			}
		}
	}
	_, err := insertMeanwhile(t.Context(), endless, func(format.Row) error { return refused })
	require.ErrorIs(t, err, refused)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = insertMeanwhile(ctx, endless, func(format.Row) error { cancel(refused); return nil })
	require.ErrorIs(t, err, refused)
}

func TestAPanicOfReadingIsDamage(t *testing.T) {
	_, err := insertMeanwhile(t.Context(), func(context.Context, func(format.Row) error) (Changes, error) { panic("a row of none") }, nil)
	require.ErrorIs(t, err, ErrDamaged)
}
