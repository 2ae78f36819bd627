package backups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/backup/writer/schedule"
	"etcd-wrapper/cmd/backups/local"
	"etcd-wrapper/cmd/commandline"
)

// Settings are what the flags about backups mean.
type Settings struct {
	Flags      commandline.Backups // that they were read from
	VolumeDir  string              // of the wrapper that was asked; empty if none was
	Store      store.Store         // nil without --backup-store
	Keys       *seal.Keys
	Schedule   schedule.Schedule
	Policy     retention.Policy
	Interval   time.Duration
	SpoolLimit int64 // bytes
	Inspect    Inspect
	// AcceptUnsigned is --accept-unsigned: what etcd-backup-restore left is read although it has no signature and trusted keys are given.
	AcceptUnsigned bool
}

// Inspect looks at a database in a process of its own, before it is opened to be changed: rebuild.Options has more about it.
// It may be nil.
type Inspect = func(ctx context.Context, path string) error

// Read looks at everything that the flags name but the store, which is not contacted. The error is one sentence that begins with
// a flag: call it before anything starts.
func Read(flags commandline.Backups) (Settings, error) {
	settings := Settings{Flags: flags, Interval: flags.Interval, SpoolLimit: int64(flags.SpoolLimit)}
	var err error
	if flags.Store != "" {
		if settings.Store, err = locate.Open(flags.Store); err != nil {
			return Settings{}, err
		}
	}
	if settings.Schedule, err = schedule.Parse(flags.FullSchedule); err != nil {
		return Settings{}, err
	}
	if settings.Policy, err = retention.ParsePolicy(flags.Keep.Policy); err != nil {
		return Settings{}, err
	}
	settings.Keys, err = seal.Load(seal.Files{
		Recipients: flags.Recipients, Identities: flags.Identities, SigningKey: flags.SigningKey, TrustedKeys: flags.TrustedKeys,
	})
	return settings, err
}

// Archive is what is kept in the store.
func (s Settings) Archive() *archive.Archive { return archive.New(s.Store, s.Keys) }

// Told is what the running wrapper tells the commands of its flags. Paths become absolute, since those may run elsewhere.
func Told(flags commandline.Backups, volumeDir string) local.Flags {
	return local.Flags{
		Store: flags.Store, Keep: flags.Keep.Policy, Recipients: absolute(flags.Recipients), Identities: absolute(flags.Identities),
		SigningKey: absolute(flags.SigningKey), TrustedKeys: absolute(flags.TrustedKeys), VolumeDir: absolute(volumeDir),
	}
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil && path != "" {
		return full
	}
	return path
}

// ErrNoStore says that nobody said where the backups are.
var ErrNoStore = errors.New("--backup-store: is missing; give it, or ETCD_WRAPPER_BACKUP_STORE, as start-etcd has it")

// Find is Read for a command: without --backup-store the wrapper that runs on this host says what it was told, and what else is
// given takes precedence. The error is about a flag.
func Find(ctx context.Context, flags commandline.Backups, port uint16) (Settings, error) {
	if flags.Store != "" {
		return Read(flags)
	}
	told, err := local.NewClient(port).Flags(ctx)
	if err != nil {
		return Settings{}, fmt.Errorf("%w; a wrapper that could be asked: %w", ErrNoStore, err)
	}
	if !flags.Keep.Given {
		flags.Keep = commandline.Keep{Policy: told.Keep, Given: true}
	}
	flags.Store = told.Store
	flags.Recipients, flags.Identities = cmp.Or(flags.Recipients, told.Recipients), cmp.Or(flags.Identities, told.Identities)
	flags.SigningKey, flags.TrustedKeys = cmp.Or(flags.SigningKey, told.SigningKey), cmp.Or(flags.TrustedKeys, told.TrustedKeys)
	settings, err := Read(flags)
	settings.VolumeDir = told.VolumeDir
	return settings, err
}
