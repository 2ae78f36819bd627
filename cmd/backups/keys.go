package backups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/printable"
)

// ErrNoKey reports that no key matches the selection.
var ErrNoKey = errors.New("did not exist")

// Selection selects keys.
type Selection struct {
	Key    string
	Prefix bool // select all keys that start with Key
}

// String describes the selection for messages.
func (s Selection) String() string {
	if s.Prefix {
		return "keys with prefix " + quote(s.Key)
	}
	return "key " + quote(s.Key)
}

// rangeEnd returns the end of the selected key range: nil for a single key, or an empty slice if there is no upper
// bound.
func (s Selection) rangeEnd() []byte {
	if !s.Prefix {
		return nil
	}
	end := []byte(clientv3.GetPrefixRangeEnd(s.Key))
	if bytes.Equal(end, []byte{0}) { // etcd clients encode a missing upper bound as a zero byte
		end = []byte{}
	}
	return end
}

// A Key is a key and its value at a revision. The JSON format prints each Key on its own line. Keys and values that
// are not valid UTF-8 are encoded in base64.
type Key struct {
	Key            string `json:"key,omitempty"`
	KeyBase64      []byte `json:"key_base64,omitempty"`
	Value          string `json:"value"`
	ValueBase64    []byte `json:"value_base64,omitempty"`
	CreateRevision int64  `json:"create_revision"`
	ModRevision    int64  `json:"mod_revision"`
	Version        int64  `json:"version"`
	Lease          int64  `json:"lease,omitempty"`
}

func keyOf(kv *mvccpb.KeyValue) Key {
	key := Key{CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
	if key.Key = string(kv.Key); !utf8.Valid(kv.Key) {
		key.Key, key.KeyBase64 = "", kv.Key
	}
	if key.Value = string(kv.Value); !utf8.Valid(kv.Value) {
		key.Value, key.ValueBase64 = "", kv.Value
	}
	return key
}

// A Form is an output format for keys.
type Form string

// The output formats.
const (
	AsText   Form = "text"   // the key and its value on separate lines, like the output of etcdctl get
	AsShown  Form = "shown"  // like AsText, but with control characters escaped for a terminal
	AsJSON   Form = "json"   // one JSON document per line
	AsScript Form = "script" // shell commands that write the keys
)

// Get prints the selected keys as they were at the target. Get returns ErrNoKey if no key matches, and
// archive.ErrNotKept if the target is not available. Get rebuilds the database in scratch, a directory that no other
// process may use.
func Get(ctx context.Context, settings Settings, target archive.Target, selected Selection, form Form, scratch string, to io.Writer, meter *Meter) (err error) {
	db, err := openDatabase(ctx, settings, target, scratch, meter)
	defer func() { err = errors.Join(err, db.Close(), os.RemoveAll(scratch)) }()
	if err != nil {
		return err
	}
	found := false
	for kv, err := range db.keys(ctx, selected) {
		if err == nil && form == AsScript && !found {
			_, err = io.WriteString(to, "set -e\n") // the script must stop at the first failed put
		}
		if err == nil {
			err = form.print(to, kv)
		}
		if err != nil {
			return err
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%s %w at revision %d", selected, ErrNoKey, db.revision)
	}
	return nil
}

func (f Form) print(to io.Writer, kv *mvccpb.KeyValue) error {
	switch f {
	case AsJSON:
		return json.NewEncoder(to).Encode(keyOf(kv))
	case AsScript:
		command, err := put(kv)
		if err == nil {
			_, err = io.WriteString(to, command)
		}
		return err
	case AsShown:
		kv = &mvccpb.KeyValue{Key: printable.ForTerminal(kv.Key), Value: printable.ForTerminal(kv.Value)}
	case AsText:
	}
	_, err := fmt.Fprintf(to, "%s\n%s\n", kv.Key, kv.Value)
	return err
}

// put returns a shell command that writes the key without a lease. The value is passed on standard input, because an
// argument cannot contain a zero byte.
func put(kv *mvccpb.KeyValue) (string, error) {
	if strings.ContainsRune(string(kv.Key), 0) {
		return "", fmt.Errorf("key %s contains a zero byte, which etcdctl does not accept; use --output=json and write the key with your own client", quote(string(kv.Key)))
	}
	key := shellWord(string(kv.Key))
	if len(kv.Value) == 0 { // etcdctl treats empty standard input as a missing value
		return fmt.Sprintf("etcdctl put -- %s ''\n", key), nil
	}
	return fmt.Sprintf("printf %%b %s | etcdctl put -- %s\n", escaped(kv.Value), key), nil
}

// escaped escapes bytes for the %b format of the POSIX printf command.
func escaped(value []byte) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, c := range value {
		if c >= ' ' && c < 0x7f && c != '\'' && c != '\\' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\0%03o`, c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// shellWord quotes a word for a POSIX shell.
func shellWord(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// quote quotes a key for use in messages.
func quote(key string) string { return fmt.Sprintf("%q", printable.Line(key)) }

// A Change describes how a key differs between two revisions. From is nil for a created key, To for a deleted one.
type Change struct {
	Change string `json:"change"` // created, changed or deleted
	From   *Key   `json:"from,omitempty"`
	To     *Key   `json:"to,omitempty"`
}

// Print prints the change as one line of text.
func (c Change) Print(to io.Writer) error {
	var err error
	switch {
	case c.From == nil:
		_, err = fmt.Fprintf(to, "created %s at revision %d\n", c.To.name(), c.To.ModRevision)
	case c.To == nil:
		_, err = fmt.Fprintf(to, "deleted %s, last modified at revision %d\n", c.From.name(), c.From.ModRevision)
	default:
		_, err = fmt.Fprintf(to, "changed %s at revision %d, previously at revision %d\n", c.To.name(), c.To.ModRevision, c.From.ModRevision)
	}
	return err
}

func (k *Key) name() string {
	if k.KeyBase64 != nil {
		return quote(string(k.KeyBase64))
	}
	return printable.Line(k.Key)
}

// A Range is a pair of targets to compare.
type Range struct{ From, To archive.Target }

// Diff prints how the keys with a prefix differ between two targets, sorted by key. Diff returns the same errors as
// Get, except for ErrNoKey.
func Diff(ctx context.Context, settings Settings, between Range, prefix string, form Form, scratch string, to io.Writer, meter *Meter) (err error) {
	var databases [2]database
	for i, target := range []archive.Target{between.From, between.To} {
		databases[i], err = openDatabase(ctx, settings, target, filepath.Join(scratch, fmt.Sprint(i)), meter)
		defer func() { err = errors.Join(err, databases[i].Close(), os.RemoveAll(scratch)) }()
		if err != nil {
			return err
		}
	}
	selected, count := Selection{Key: prefix, Prefix: true}, map[string]int{}
	for change, err := range changes(databases[0].keys(ctx, selected), databases[1].keys(ctx, selected)) {
		if err == nil && form == AsJSON {
			err = json.NewEncoder(to).Encode(change)
		} else if err == nil {
			err = change.Print(to)
		}
		if err != nil {
			return err
		}
		count[change.Change]++
	}
	if form != AsJSON {
		_, err = fmt.Fprintf(to, "%d created, %d changed, %d deleted between revisions %d and %d\n",
			count["created"], count["changed"], count["deleted"], databases[0].revision, databases[1].revision)
	}
	return err
}

// changes compares two sorted sequences of keys and returns the keys that differ.
func changes(from, to iter.Seq2[*mvccpb.KeyValue, error]) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		before, stopBefore := iter.Pull2(from)
		defer stopBefore()
		after, stopAfter := iter.Pull2(to)
		defer stopAfter()
		older, err, hasOlder := before()
		newer, failed, hasNewer := after()
		for hasOlder || hasNewer {
			if err = errors.Join(err, failed); err != nil {
				yield(Change{}, err)
				return
			}
			order := compare(older, newer, hasOlder, hasNewer)
			if change, differs := changeOf(older, newer, order); differs && !yield(change, nil) {
				return
			}
			if order <= 0 {
				older, err, hasOlder = before()
			}
			if order >= 0 {
				newer, failed, hasNewer = after()
			}
		}
	}
}

// compare compares the current keys of both sequences and returns -1, 0 or 1, like strings.Compare. The end of a
// sequence sorts after every key.
func compare(older, newer *mvccpb.KeyValue, hasOlder, hasNewer bool) int {
	switch {
	case !hasOlder:
		return 1
	case !hasNewer:
		return -1
	default:
		return strings.Compare(string(older.Key), string(newer.Key))
	}
}

func changeOf(older, newer *mvccpb.KeyValue, order int) (change Change, differs bool) {
	switch {
	case order < 0:
		from := keyOf(older)
		return Change{Change: "deleted", From: &from}, true
	case order > 0:
		to := keyOf(newer)
		return Change{Change: "created", To: &to}, true
	}
	from, to := keyOf(older), keyOf(newer)
	return Change{Change: "changed", From: &from, To: &to}, older.ModRevision != newer.ModRevision
}

// A database contains the keys of etcd at a revision. The zero value is a closed database.
type database struct {
	*restore.Keys

	revision int64
}

// Close closes the database without removing its files.
func (d database) Close() error {
	if d.Keys == nil {
		return nil
	}
	return d.Keys.Close()
}

// openDatabase rebuilds etcd's database at a target in dir and opens it.
func openDatabase(ctx context.Context, settings Settings, target archive.Target, dir string, meter *Meter) (database, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return database{}, err
	}
	file := filepath.Join(dir, "db")
	exported, err := Export(ctx, settings, target, file, meter)
	if errors.Is(err, ErrIncomplete) {
		err = fmt.Errorf("the backups are %w: revisions after %d cannot be read (%s); use revision:%d instead of latest", ErrIncomplete,
			exported.Revision, strings.Join(exported.Damaged, "; "), exported.Revision)
	}
	if err != nil {
		return database{}, err
	}
	keys, err := restore.OpenKeys(file)
	return database{keys, exported.Revision}, err
}

// keys returns the selected keys in lexical order.
func (d database) keys(ctx context.Context, selected Selection) iter.Seq2[*mvccpb.KeyValue, error] {
	return d.Range(ctx, []byte(selected.Key), selected.rangeEnd())
}
