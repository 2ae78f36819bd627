package recovery

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"etcd-wrapper/backup/relation"
	"etcd-wrapper/recovery/peers"
)

// changeOnDisk changes the last value on the volume, as a faulty disk may.
func (w *world) changeOnDisk() {
	w.t.Helper()
	db, err := bolt.Open(w.database(), 0o600, nil)
	require.NoError(w.t, err)
	defer db.Close()
	require.NoError(w.t, db.Update(func(tx *bolt.Tx) error {
		rows := tx.Bucket(schema.Key.Name())
		key, value := rows.Cursor().Last()
		changed := bytes.Clone(value)
		changed[len(changed)-1] ^= 1
		return rows.Put(bytes.Clone(key), changed)
	}))
}

// refuse records that the writer rejected the data because a row differs from the store's.
func (w *world) refuse() {
	w.t.Helper()
	why := errors.New("another copy of this data continues its backups")
	require.NoError(w.t, w.recovery().RecordMismatch(w.member.DataDir, &relation.RowsError{Err: why, First: 5, Last: 5}))
}

// The writer cannot distinguish a copy from a value that the disk has changed; the log on the volume can.
func TestValueThatTheDiskChangedIsRestoredFromTheStore(t *testing.T) {
	for name, action := range map[string]func(*world){
		"refused by the writer": (*world).refuse,
		"found when it is replaced": func(w *world) {
			w.copyVolume()
			w.put("d")
			w.backUp()
			w.rollBack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.put("a", "b", "c")
			w.backUp()
			action(w)
			w.changeOnDisk()
			require.NoError(t, w.run(), w.log.String())
			assert.Contains(t, w.log.String(), "revision 5 on the volume is not what etcd's log has: the disk has changed it")
			assert.Len(t, w.preserved(), 1)
			assert.Len(t, w.generations(), 2)
			assert.NoError(t, w.run(), "it is not refused again")
			assert.Len(t, w.generations(), 2)
		})
	}
}

func TestValueThatTheDiskChangedIsRestoredFromTheOthers(t *testing.T) {
	w, o := ofThree(t)
	w.put("a", "b", "c")
	w.changeOnDisk()
	w.refuse()
	o.listing = peers.Started
	w.requireRejoined()
	assert.Contains(t, w.log.String(), "the disk has changed it")
}

// A copy wrote its rows itself, and its log proves that.
func TestCopyIsNotTakenForDamage(t *testing.T) {
	w := newFilledWorld(t)
	w.put("a", "b", "c")
	w.refuse()
	w.requireStarts()
	assert.Empty(t, w.preserved())
}

// Only the compared rows show whether the disk caused the rejection.
func TestRefusalForAnotherReasonIsNotTakenForDamage(t *testing.T) {
	why := errors.New("another copy of this data continues its backups")
	for name, err := range map[string]error{
		"no rows were compared":       why,
		"later rows differ":           &relation.RowsError{Err: why, First: 6, Last: 7},
		"earlier rows differ":         &relation.RowsError{Err: why, First: 3, Last: 4},
		"the user wants to keep them": &relation.RowsError{Err: why, First: 5, Last: 5},
		"another data directory":      &relation.RowsError{Err: why, First: 5, Last: 5},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFilledWorld(t)
			w.put("a", "b", "c")
			w.backUp()
			w.changeOnDisk()
			dir := w.member.DataDir
			switch name {
			case "the user wants to keep them":
				w.options.Adopt = ours
			case "another data directory":
				dir += "-2"
			}
			require.NoError(t, w.recovery().RecordMismatch(dir, err))
			w.requireStarts()
			assert.Empty(t, w.preserved())
		})
	}
}

// A value that the disk changed does not excuse rows that a copy has written.
func TestCopyWithAValueThatTheDiskChangedIsNotReplaced(t *testing.T) {
	w := newFilledWorld(t)
	w.put("a", "b", "c")
	w.backUp()
	w.copyVolume()
	w.put("d", "e")
	w.backUp()
	w.rollBack()
	w.changeOnDisk()
	w.put("x")
	w.requireRefused("revision 6 on the volume differs")
	assert.Empty(t, w.preserved())
}
