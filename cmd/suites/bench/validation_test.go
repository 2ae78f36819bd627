//go:build bench

package bench_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

var revisions = flag.Int64("revisions", 1_000_000, "number of 1.3 kB revisions in the database that is validated")

const (
	validations     = 5    // number of validations with the files in the page cache
	coldValidations = 3    // number of validations with the files only on disk
	revisionBytes   = 1100 // value size; three rows fit on a database page
	revisionsAtOnce = 20_000
	firstRevision   = 1_000_000 // higher than any revision stored by etcd itself
)

// fullValidation compares the validation that --standalone performs after a crash with "etcdutl hashkv", which reads
// every revision once, and with reading the files without checking them.
func fullValidation(t *testing.T) []row {
	p := harness.NewPod(t)
	plain.start(t, p).stop()
	fillDatabase(t, p.DBPath(), *revisions)
	full := func() { run(t, harness.Program, "verify-data", "-o", "json", "--data-dir", p.DataDir()) }
	hash := func() { run(t, harness.Program, "etcdutl", "hashkv", p.DBPath()) }
	read := func() { readFiles(t, p.DataDir()) }
	read() // fill the page cache
	warm := alternate(validations, func() {}, hash, full)
	cold := alternate(coldValidations, func() { evict(t, p.DataDir()) }, hash, read, full)
	what := fmt.Sprintf("`etcdutl hashkv` and `full` validation of %s in the page cache, ms", size(t, p.DBPath()))
	return []row{
		row{what: what, plain: warm[0], wrapper: warm[1]}.timesAtMost(1, "hashkv"),
		row{what: "`etcdutl hashkv` and `full` validation from disk, ms", plain: cold[0], wrapper: cold[2]}.timesAtMost(1, "hashkv"),
		row{what: "plain read of the files and `full` validation from disk, ms", plain: cold[1], wrapper: cold[2]}.timesAtMost(1.2, "reading"),
	}
}

// fillDatabase adds revisions to a database in etcd's format, but omits the raft log that etcd would write.
func fillDatabase(t *testing.T, path string, count int64) {
	t.Helper()
	database, err := bolt.Open(path, 0, &bolt.Options{NoSync: true})
	require.NoError(t, err)
	content, dice := make([]byte, revisionBytes), rand.NewChaCha8([32]byte{})
	for from := int64(0); from < count; from += revisionsAtOnce {
		require.NoError(t, database.Update(func(tx *bolt.Tx) error {
			keys := tx.Bucket(schema.Key.Name())
			keys.FillPercent = 0.9 // as etcd does for keys in ascending order
			for n := from; n < min(from+revisionsAtOnce, count); n++ {
				_, _ = dice.Read(content) // never fails
				if err := keys.Put(revision(n+firstRevision, content)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	require.NoError(t, database.Sync())
	require.NoError(t, database.Close())
}

// revision returns the database row for the first revision of a new key.
func revision(main int64, content []byte) (key, value []byte) {
	key = mvcc.RevToBytes(mvcc.Revision{Main: main}, mvcc.NewRevBytes())
	stored := mvccpb.KeyValue{Key: key, Value: content, CreateRevision: main, ModRevision: main, Version: 1}
	value, _ = stored.Marshal() // cannot fail for these fields
	return key, value
}

// alternate calls each function once per round, and calls prepare before each call. It returns the durations of the
// functions' calls in milliseconds.
func alternate(rounds int, prepare func(), each ...func()) []series {
	took := make([]series, len(each))
	for range rounds {
		for i, do := range each {
			prepare()
			start := time.Now()
			do()
			took[i] = append(took[i], milliseconds(time.Since(start)))
		}
	}
	return took
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	output, err := exec.Command(program, args...).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// evict evicts the files from the kernel's page cache.
func evict(t *testing.T, dir string) {
	t.Helper()
	eachFile(t, dir, func(file *os.File) error {
		return errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
	})
}

func readFiles(t *testing.T, dir string) {
	t.Helper()
	buffer := make([]byte, 1<<20)
	eachFile(t, dir, func(file *os.File) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{file}, buffer)
		return err
	})
}

func eachFile(t *testing.T, dir string, do func(file *os.File) error) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close() // nothing was written, so a close error is harmless
		return do(file)
	}))
}
