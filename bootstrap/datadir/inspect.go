package datadir

import (
	"fmt"

	"github.com/rs/zerolog"
)

// Identity is who the configuration says that the member is.
type Identity struct {
	Name           string
	PeerURLs       []string // that it advertises
	InitialCluster string   // as etcd's configuration has it: name=URL, separated by commas
}

// Inspect refuses what etcd would take without a word, and serve with less than was acknowledged, or under a wrong name.
// It is for the moment before etcd opens the directory, whoever has validated it. A member that was never born is moved
// out of the way. What can't be read is left to etcd, which says why. What etcd puts up with, and a person should know of,
// is warned of.
func (f *Findings) Inspect(configured Identity, log zerolog.Logger) error {
	for _, warning := range f.warnings {
		log.Warn().Msg(warning)
	}
	if err := f.inspect(configured, log); err != nil {
		return fmt.Errorf("%w (a validation that called the data valid, the sidecar's too, has not looked at this)", err)
	}
	return nil
}

func (f *Findings) inspect(configured Identity, log zerolog.Logger) error {
	if moved, err := f.settleVoteless(log); err != nil || moved {
		return err
	}
	if err := refuseLostRestore(f.member); err != nil {
		return err
	}
	if err := refuseForeign(f.member, f.contents); err != nil {
		return err
	}
	if err := f.refuseShort(); err != nil {
		return err
	}
	return f.refuseStranger(configured, log)
}
