package commandline

import (
	"os"
	"slices"

	"github.com/alecthomas/kong"
)

// Keep is --backup-keep.
type Keep struct {
	Policy string
	Given  bool // somebody said it, be it the default
}

// DefaultKeep is what --backup-keep is unless it is given.
const DefaultKeep = "points=24h,hourly=24,daily=7,weekly=4"

// UnmarshalText is called by kong.
func (k *Keep) UnmarshalText(text []byte) error {
	k.Policy = string(text)
	return nil
}

// AfterApply is called by kong, also for a default.
func (k *Keep) AfterApply(line *kong.Context, at *kong.Path) error {
	argument := func(p *kong.Path) bool { return p.Flag == at.Flag }
	variable := func(name string) bool { _, is := os.LookupEnv(name); return is }
	k.Given = slices.ContainsFunc(line.Path, argument) || slices.ContainsFunc(at.Flag.Envs, variable)
	return nil
}
