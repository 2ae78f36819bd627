package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrNotVerified says that a backup could not be restored, or not to what etcd had.
var ErrNotVerified = errors.New("the test restore failed")

// Verified is what backup verify tells, and with -o json its document.
type Verified struct {
	Generation int             `json:"generation"`
	Full       string          `json:"full"`     // that it began with
	Revision   int64           `json:"revision"` // that was restored
	Drill      bool            `json:"drill"`    // whether segments were restored, too
	Outcome    archive.Outcome `json:"outcome"`
	Why        string          `json:"why,omitempty"`
	Hash       *archive.Hash   `json:"hash,omitempty"` // etcd's own that it was compared with; absent if none is known
	Seconds    float64         `json:"seconds"`
	Recorded   bool            `json:"recorded"` // the verdict is in the store, and counts
}

// Verify has a backup restored, the newest full unless there is a target, and keeps the verdict in the store. ErrNotVerified comes
// with the document. restore restores a path and says what that showed.
func Verify(ctx context.Context, settings Settings, target *archive.Target, restore func(context.Context, archive.Path) (archive.Verdict, error)) (Verified, error) {
	kept := settings.Archive()
	path, err := wanted(ctx, kept, target)
	if err != nil {
		return Verified{}, err
	}
	verdict, err := restore(ctx, path)
	if err != nil {
		return Verified{}, err
	}
	verified := Verified{
		Generation: verdict.Generation, Full: verdict.Full, Revision: verdict.Revision, Drill: verdict.Drill, Outcome: verdict.Outcome,
		Why: verdict.Why, Hash: verdict.Hash, Seconds: verdict.Seconds,
	}
	if settings.Keys.Signs() || !settings.Keys.Trusts() { // nobody would believe it otherwise
		err = kept.PutVerdict(ctx, verdict)
		verified.Recorded = err == nil
	}
	if verdict.Outcome != archive.Verified {
		err = errors.Join(fmt.Errorf("%w: %s", ErrNotVerified, verdict.Why), err)
	}
	return verified, err
}

// wanted is the way to a target, or to the newest full.
func wanted(ctx context.Context, kept *archive.Archive, target *archive.Target) (archive.Path, error) {
	if target != nil {
		return kept.Find(ctx, *target)
	}
	history, err := kept.History(ctx)
	if err != nil {
		return archive.Path{}, fmt.Errorf("cannot list what is kept: %w", err)
	}
	newest := history.Newest()
	if newest == nil || len(newest.Fulls) == 0 {
		return archive.Path{}, fmt.Errorf("a full is %w in %s", archive.ErrNotKept, kept)
	}
	full := newest.Fulls[len(newest.Fulls)-1]
	if full.Label != full.Name() { // its manifest cannot be read
		return archive.Path{}, full.Err
	}
	return archive.Path{Generation: newest.Generation, Full: full.Full, Revision: full.Revision, Time: full.Time}, nil
}

// Print prints the document for people.
func (v Verified) Print(to io.Writer) error {
	words := fmt.Sprintf("revision %d could be restored", v.Revision)
	switch {
	case v.Outcome != archive.Verified:
		words = fmt.Sprintf("revision %d could not be restored", v.Revision)
	case v.Hash != nil:
		words += fmt.Sprintf(", with etcd's own hash of revision %d", v.Hash.Revision)
	}
	recorded := "the verdict is in the store"
	if !v.Recorded {
		recorded = "the verdict is not in the store, as it would not be signed"
	}
	took := terminal.Rounded(time.Duration(v.Seconds * float64(time.Second)))
	_, err := fmt.Fprintf(to, "%s, from full %s of generation %d, in %v; %s\n", words, v.Full, v.Generation, took, recorded)
	return err
}
