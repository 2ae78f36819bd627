package archive

import (
	"context"
	"errors"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// Outcome is what a test restore showed.
type Outcome string

// The outcomes. What kept a test restore from being done is none of them.
const (
	Verified Outcome = "verified"
	Failed   Outcome = "failed"
)

// Verdict is what a test restore showed.
type Verdict struct {
	seal.Heading
	Cluster    string       `json:"cluster"`
	Generation int          `json:"generation"`
	Full       string       `json:"full"`     // the full's name that it began with
	Revision   int64        `json:"revision"` // that was restored: the full's, or that of a drill
	Drill      bool         `json:"drill"`    // whether segments were restored, too
	Outcome    Outcome      `json:"outcome"`
	Why        string       `json:"why,omitempty"` // it failed: a sentence
	At         time.Time    `json:"at"`            // to the second
	Seconds    float64      `json:"seconds"`       // how long it took
	Database   segment.Body `json:"database,omitzero"`
	Hash       *Hash        `json:"hash,omitempty"` // etcd's own that was compared with; nil if there was none
	Member     string       `json:"member"`         // who did it: etcd's member id, hexadecimal
}

const verdictKind = "verdict"

func verdictName(v Verdict) string {
	if v.Drill {
		return drillPrefix(v.Generation) + v.At.Format(second) + ".json"
	}
	return verdictPrefix(v.Generation) + v.Full + "_" + v.At.Format(second) + ".json"
}

// sameSecond is how many verdicts may be given within a second.
const sameSecond = 10

// PutVerdict stores a verdict. Heading is filled in. There may be several of a full: the newest counts. Of those of the same
// second the later ones are put down to the seconds behind it.
func (a *Archive) PutVerdict(ctx context.Context, verdict Verdict) (err error) {
	verdict.Heading, verdict.At = heading(verdictKind), verdict.At.UTC().Truncate(time.Second)
	for range sameSecond {
		if err = a.state(ctx, verdictName(verdict), verdict); !errors.Is(err, store.ErrExists) {
			return err
		}
		verdict.At = verdict.At.Add(time.Second)
	}
	return err
}

func (a *Archive) verdict(ctx context.Context, name string) (Verdict, error) {
	var verdict Verdict
	err := a.statement(ctx, name, verdictKind, &verdict)
	if err == nil && (verdictName(verdict) != name || verdict.Outcome != Verified && verdict.Outcome != Failed) {
		err = a.damaged(name)
	}
	return verdict, err
}

// Drills returns the verdicts of drills in a generation since a time, oldest first, but for those that are not to be believed:
// anybody may have put them there.
func (a *Archive) Drills(ctx context.Context, generation int, since time.Time) (drills []Verdict, err error) {
	prefix := drillPrefix(generation)
	for object, err := range a.store.List(ctx, prefix, prefix+since.UTC().Format(second)) {
		if err != nil {
			return nil, err
		}
		drill, err := a.verdict(ctx, object.Name)
		if Disbelieved(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		drills = append(drills, drill)
	}
	return drills, nil
}
