package datadir

import "github.com/rs/zerolog"

// Identity is who the configuration says that the member is.
type Identity struct {
	Name           string
	PeerURLs       []string // that it advertises
	InitialCluster string   // as etcd's configuration has it: name=URL, separated by commas
}

// Inspect refuses what etcd would take without a word, and serve with less than was acknowledged, or under a wrong name.
// It is for the moment before etcd opens the directory, whoever has validated it, and so it is quick: of the log it
// reads one segment. A member that was never born is moved out of the way. What can't be read is left to etcd, which says
// why.
//
// It knows a log in the data directory only; with one elsewhere it must not be called.
func Inspect(dataDir string, configured Identity, log zerolog.Logger) error {
	m := survey(dataDir)
	if moved, err := settleVoteless(m, log); err != nil || moved {
		return err
	}
	if err := refuseShort(m); err != nil {
		return err
	}
	return refuseStranger(m, configured, log)
}
