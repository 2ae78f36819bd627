package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrNotVerified reports that a backup cannot be restored, or that the restored data does not match the hash that
// etcd reported.
var ErrNotVerified = errors.New("the restore test failed")

// VerifyResult is the result of backup verify. The -o json flag prints it.
type VerifyResult struct {
	Generation int             `json:"generation"`
	Full       string          `json:"full"`     // full snapshot that was restored
	Revision   int64           `json:"revision"` // restored revision
	Segments   bool            `json:"segments"` // segments were restored too
	Outcome    archive.Outcome `json:"outcome"`
	Why        string          `json:"why,omitempty"`
	Hash       *format.Hash    `json:"hash,omitempty"` // etcd's hash, compared with the restored data; absent if unknown
	Seconds    float64         `json:"seconds"`
	Recorded   bool            `json:"recorded"` // this result was written to the store
}

// A Selector selects a backup.
type Selector struct {
	archive.Target
	Full bool // select the newest full snapshot of Generation instead of a target; generation 0 is the newest
}

// A RestoreFunc restores the backup at a path and returns the result of the restore test.
type RestoreFunc func(context.Context, archive.Path) (archive.Result, error)

// Verify tests a backup by calling restore, and records the result in the store. A result is valid even if it is
// returned with ErrNotVerified or ErrIncomplete. ErrIncomplete means that the backup was restored but later revisions
// cannot be read.
func Verify(ctx context.Context, settings Settings, chosen Selector, restore RestoreFunc) (VerifyResult, error) {
	kept := settings.Archive()
	path, err := findSelected(ctx, kept, chosen)
	if err != nil {
		return VerifyResult{}, err
	}
	result, err := restore(ctx, path)
	if err != nil {
		return VerifyResult{}, err
	}
	verified := VerifyResult{
		Generation: result.Generation, Full: result.Full, Revision: result.Revision, Segments: result.Segments, Outcome: result.Outcome,
		Why: result.Why, Hash: result.Hash, Seconds: result.Seconds,
	}
	if settings.Keys.Signs() || !settings.Keys.Trusts() { // members with trusted keys would reject an unsigned result
		err = kept.PutResult(ctx, result)
		verified.Recorded = err == nil
	}
	switch {
	case result.Outcome != archive.Verified:
		err = errors.Join(fmt.Errorf("%w: %s", ErrNotVerified, result.Why), err)
	case path.PastEnd != nil:
		err = errors.Join(fmt.Errorf("the backups are %w: revisions after revision %d cannot be read: %w", ErrIncomplete, result.Revision, path.PastEnd), err)
	}
	return verified, err
}

// findSelected returns the path to the selected backup.
func findSelected(ctx context.Context, kept *archive.Archive, chosen Selector) (archive.Path, error) {
	if !chosen.Full {
		return kept.Find(ctx, chosen.Target)
	}
	history, err := kept.History(ctx)
	if err != nil {
		return archive.Path{}, fmt.Errorf("cannot list the backups: %w", err)
	}
	of, what := history.Newest(), "a full snapshot"
	if chosen.Generation != 0 {
		of, what = history.Generation(chosen.Generation), fmt.Sprintf("a full snapshot of generation %d", chosen.Generation)
	}
	if of == nil || len(of.Fulls) == 0 {
		return archive.Path{}, fmt.Errorf("%s is %w in %s", what, archive.ErrNotKept, kept)
	}
	full := of.Fulls[len(of.Fulls)-1]
	if full.Err != nil { // the manifest cannot be verified
		return archive.Path{}, full.Err
	}
	path := archive.Path{Generation: of.Generation, Full: full.Full, Revision: full.Revision, Time: full.Time}
	if len(of.Chains) > 0 {
		path.PastEnd = of.Chains[len(of.Chains)-1].PastEnd
	}
	return path, nil
}

// Print prints the result as text.
func (v VerifyResult) Print(to io.Writer) error {
	words := fmt.Sprintf("restored revision %d", v.Revision)
	switch {
	case v.Outcome != archive.Verified:
		words = fmt.Sprintf("failed to restore revision %d", v.Revision)
	case v.Hash != nil:
		words += fmt.Sprintf(" and verified it against etcd's hash at revision %d", v.Hash.Revision)
	}
	recorded := "recorded the result in the store"
	if !v.Recorded {
		recorded = "the result is not recorded, because it could not be signed or stored"
	}
	took := terminal.Round(time.Duration(v.Seconds * float64(time.Second)))
	_, err := fmt.Fprintf(to, "%s (full snapshot %s of generation %d, %v); %s\n", words, v.Full, v.Generation, took, recorded)
	return err
}
