package commandline

import (
	"errors"
	"fmt"
	"time"
)

// Recovery are the flags about what happens with broken or lost data.
type Recovery struct {
	Recover   string `name:"recover" group:"Backups" enum:"auto,never" default:"auto" help:"What happens with data that are broken, lost or were put back to an older state: auto brings them back, from --backup-store or from the other members, where that is safe, never leaves them alone."`
	RestoreTo string `name:"restore-to" group:"Backups" placeholder:"TARGET" help:"Go back once, before etcd starts: latest, revision:N or time:2026-11-22T12:00:00Z; with --restore-id."`
	RestoreID string `name:"restore-id" group:"Backups" placeholder:"NAME" help:"Name of that restore; one that was done is not done again."`
}

// maxRestoreID is how long the name of a restore may be.
const maxRestoreID = 100

// validateFor says what is wrong with the flags, beside those of a store.
func (f *Recovery) validateFor(store string) error {
	switch {
	case f.RestoreTo == "" && f.RestoreID == "":
		return nil
	case f.RestoreTo == "" || f.RestoreID == "":
		return errors.New("--restore-to and --restore-id: one without the other; a restore has a name so that a restart does not do it again")
	case store == "":
		return errors.New("--restore-to: only with --backup-store")
	case len(f.RestoreID) > maxRestoreID:
		return fmt.Errorf("--restore-id: more than %d characters", maxRestoreID)
	}
	target, err := f.Target()
	if err == nil {
		err = target.Check(time.Now())
	}
	if err != nil {
		err = fmt.Errorf("--restore-to: %w", err)
	}
	return err
}

// Target is what --restore-to asks for.
func (f *Recovery) Target() (target Target, err error) {
	err = target.UnmarshalText([]byte(f.RestoreTo))
	return target, err
}
