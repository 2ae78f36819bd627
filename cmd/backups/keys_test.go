package backups

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
)

// got calls Get for a revision, requires that Get removes its scratch directory, and returns the output.
func got(t *testing.T, settings Settings, revision int64, selected Selection, form Form) (text string, err error) {
	t.Helper()
	scratch, out := filepath.Join(t.TempDir(), "scratch"), &bytes.Buffer{}
	err = Get(t.Context(), settings, archive.Target{Revision: revision}, selected, form, scratch, out, NewMeter(nil))
	_, left := os.Lstat(scratch)
	require.ErrorIs(t, left, os.ErrNotExist, "Get removes the database")
	return out.String(), err
}

// The test cluster writes key0 to key6 in turn: first with the values 0, 1, 2 and so on, then with "later" before
// each number.
func TestGet(t *testing.T) {
	l := runSampleCluster(t)
	for who, settings := range map[string]Settings{"ours": l.store(t), "the sidecar's": l.storeAsSidecar(t)} {
		t.Run(who, func(t *testing.T) {
			text, err := got(t, settings, l.revision, Selection{Key: "key1"}, AsText)
			require.NoError(t, err)
			assert.Equal(t, "key1\n15\n", text)
			text, err = got(t, settings, l.revision+2, Selection{Key: "key1"}, AsText)
			require.NoError(t, err)
			assert.Equal(t, "key1\nlater1\n", text)

			text, err = got(t, settings, l.revision+1, Selection{Key: "key", Prefix: true}, AsJSON)
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(text), "\n")
			require.Len(t, lines, 7)
			var first Key
			require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
			assert.Equal(t, Key{Key: "key0", Value: "later0", CreateRevision: 2, ModRevision: l.revision + 1, Version: 4}, first)

			_, err = got(t, settings, l.revision, Selection{Key: "key"}, AsText)
			require.ErrorIs(t, err, ErrNoKey)
			assert.EqualError(t, err, fmt.Sprintf(`key "key" did not exist at revision %d`, l.revision))
		})
	}
}

func TestGet_script(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcdctl"), []byte("#!/bin/sh\nprintf '%s=' \"$3\"\nif [ $# -gt 3 ]; then printf %s \"$4\"; exit; fi\ncat >\"$0.value\"\n[ -s \"$0.value\" ] || exit 1 # as etcdctl does\ncat \"$0.value\"\n"), 0o700)) //nolint:gosec // it is run
	for _, kv := range []*mvccpb.KeyValue{
		{Key: []byte("/plain"), Value: []byte("value")},
		{Key: []byte("-it's \"$HOME\" `x`\n"), Value: []byte("it's\\n 100% \"$HOME\"\n\n")},
		{Key: []byte("bytes\xff"), Value: []byte{0, 1, 2, '0', '7', 0x80, 0xff, '\\', '0'}},
		{Key: []byte("empty")},
	} {
		var script bytes.Buffer
		require.NoError(t, AsScript.print(&script, kv))
		command := exec.Command("sh", "-c", script.String())
		command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := command.Output()
		require.NoError(t, err)
		assert.Equal(t, string(kv.Key)+"="+string(kv.Value), string(out))
	}
	assert.ErrorContains(t, AsScript.print(&bytes.Buffer{}, &mvccpb.KeyValue{Key: []byte("a\x00")}), "zero byte")
}

func TestGet_escapesControlCharacters(t *testing.T) {
	var out bytes.Buffer
	kv := &mvccpb.KeyValue{Key: []byte("k\x1b[1m"), Value: []byte("a\n\tb \u2713 http://u:p@h\x1b]0;x\a\xff")}
	require.NoError(t, AsShown.print(&out, kv))
	assert.Equal(t, "k\\x1b[1m\na\n\tb \u2713 http://u:p@h\\x1b]0;x\\a\\xff\n", out.String())
}

func TestDiff(t *testing.T) {
	l := runSampleCluster(t)
	settings, out := l.store(t), &bytes.Buffer{}
	scratch := filepath.Join(t.TempDir(), "scratch")
	between := Range{From: archive.Target{Revision: l.revision}, To: archive.Target{Revision: l.revision + 2}}
	require.NoError(t, Diff(t.Context(), settings, between, "", AsText, scratch, out, NewMeter(nil)))
	assert.Equal(t, fmt.Sprintf("changed key0 at revision %[2]d, previously at revision %[4]d\nchanged key1 at revision %[3]d, previously at revision %[5]d\n0 created, 2 changed, 0 deleted between revisions %[1]d and %[3]d\n",
		l.revision, l.revision+1, l.revision+2, 16, 17), out.String())
	_, left := os.Lstat(scratch)
	require.ErrorIs(t, left, os.ErrNotExist)
	out.Reset()
	require.NoError(t, Diff(t.Context(), settings, between, "key1", AsJSON, scratch, out, NewMeter(nil)))
	assert.JSONEq(t, fmt.Sprintf(`{"change":"changed","from":{"key":"key1","value":"15","create_revision":3,"mod_revision":17,"version":3},
		"to":{"key":"key1","value":"later1","create_revision":3,"mod_revision":%d,"version":4}}`, l.revision+2), out.String())
}

func TestChanges(t *testing.T) {
	revisionsOf := func(keys ...string) func(func(*mvccpb.KeyValue, error) bool) {
		return func(yield func(*mvccpb.KeyValue, error) bool) {
			for i := 0; i < len(keys); i += 2 {
				if !yield(&mvccpb.KeyValue{Key: []byte(keys[i]), ModRevision: int64(len(keys[i+1]))}, nil) {
					return
				}
			}
		}
	}
	for _, example := range []struct {
		from, to func(func(*mvccpb.KeyValue, error) bool)
		want     string
	}{
		{revisionsOf(), revisionsOf(), ""},
		{revisionsOf(), revisionsOf("a", "1", "b", "1"), "created a at revision 1\ncreated b at revision 1\n"},
		{revisionsOf("a", "1", "b", "1"), revisionsOf(), "deleted a, last modified at revision 1\ndeleted b, last modified at revision 1\n"},
		{revisionsOf("a", "1", "c", "1", "d", "1"), revisionsOf("b", "22", "c", "1", "d", "22"), "deleted a, last modified at revision 1\ncreated b at revision 2\nchanged d at revision 2, previously at revision 1\n"},
	} {
		var out bytes.Buffer
		for change, err := range changes(example.from, example.to) {
			require.NoError(t, err)
			require.NoError(t, change.Print(&out))
		}
		assert.Equal(t, example.want, out.String())
	}
	failing := func(yield func(*mvccpb.KeyValue, error) bool) { yield(nil, os.ErrDeadlineExceeded) }
	for _, err := range changes(revisionsOf("a", "1"), failing) {
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

func TestList_empty(t *testing.T) {
	seen, err := List(t.Context(), Settings{Store: memory.New(), Keys: &format.Keys{}}, noon)
	require.ErrorIs(t, err, ErrEmpty)
	assert.Empty(t, seen.Generations)
}
