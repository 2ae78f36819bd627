package format_test

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
)

func TestAFlippedBitInASegmentIsAnError(t *testing.T) {
	pair := formattest.NewKeys(t)
	for name, keys := range map[string]*format.Keys{"plain": {}, "sealed and signed": pair.Load(t)} {
		t.Run(name, func(t *testing.T) {
			object := contents(example(t, keys))
			for bit := range 8 * len(object) {
				object[bit/8] ^= 1 << (bit % 8)
				_, err := readAll(bytes.NewReader(object), keys)
				assert.Error(t, err, "bit %d", bit)
				assert.Error(t, skipAll(bytes.NewReader(object), keys), "bit %d", bit)
				object[bit/8] ^= 1 << (bit % 8)
			}
		})
	}
}

// skipAll reads no records.
func skipAll(r io.Reader, keys *format.Keys) error {
	reader := format.NewSegmentReader(r, keys)
	for {
		if _, err := reader.Next(); format.Ended(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestASegmentThatIsCutOffOrGoesOnIsDamaged(t *testing.T) {
	object := contents(example(t, &format.Keys{}))
	for cut := 1; cut < len(object); cut++ {
		_, err := readAll(bytes.NewReader(object[:cut]), &format.Keys{})
		assert.ErrorIs(t, err, format.ErrDamaged, "cut at %d", cut)
	}
	_, err := readAll(bytes.NewReader(append(object, "more"...)), &format.Keys{})
	assert.ErrorIs(t, err, format.ErrDamaged)
}

func TestWhatReadingFailsWithIsNotDamage(t *testing.T) {
	broken := &store.Unavailable{Cause: io.EOF} // of a connection, not of the object
	object := contents(example(t, &format.Keys{}))
	for cut := range object {
		_, err := readAll(io.MultiReader(bytes.NewReader(object[:cut]), iotest.ErrReader(broken)), &format.Keys{})
		assert.ErrorIs(t, err, broken, "cut at %d", cut)
		assert.NotErrorIs(t, err, format.ErrDamaged, "cut at %d", cut)
	}
}
