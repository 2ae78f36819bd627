package datadir

import (
	"bytes"
	"errors"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// compared is how many rows are compared, the newest ones.
const compared = 10_000

// revisionBytes is the part of a row's key that is its revision; a deletion has one byte more.
const revisionBytes = 17

// Divergence returns the newest revision that both data directories have rows of which are not equal, or 0 if there is none.
// A revision has the same rows for ever, so then the data are no earlier state of the others: two clusters of one
// configuration have one cluster id, too, and data that were put back and written to have taken another way. Rows that one
// of them has not, or not any more, say nothing. Nobody may have one of them open for writing.
func Divergence(dataDir, other string) (revision int64, err error) {
	data, others := survey(dataDir, "").database, survey(other, "").database
	err = readDatabase(data, func(tx *bolt.Tx) error {
		return readDatabase(others, func(otherTx *bolt.Tx) error {
			rows, otherRows := tx.Bucket(schema.Key.Name()), otherTx.Bucket(schema.Key.Name())
			if rows == nil || otherRows == nil {
				return errors.New("a database is not etcd's: it has no bucket of keys")
			}
			revision = divergence(rows.Cursor(), otherRows.Cursor())
			return nil
		})
	})
	return revision, err
}

func divergence(rows, others *bolt.Cursor) int64 {
	key, value := rows.Last()
	for n := 0; key != nil && n < compared; n++ {
		at := key[:revisionBytes]
		found, otherValue := others.Seek(at)
		if bytes.HasPrefix(found, at) && (!bytes.Equal(found, key) || !bytes.Equal(otherValue, value)) {
			return mvcc.BytesToBucketKey(key).Main
		}
		key, value = rows.Prev()
	}
	return 0
}
