// Package backups does what the commands `etcd-wrapper backup …` and `etcd-wrapper restore` are for. Package main reads the command
// line for it, and makes exit statuses of its errors.
package backups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/readiness/status/terminal"
)

// Settings are what the flags about backups mean.
type Settings struct {
	Flags      commandline.Backups // that they were read from
	VolumeDir  string              // of the wrapper that was asked; empty if none was
	Store      store.Store         // nil without --backup-store
	Keys       *format.Keys
	Schedule   backup.Schedule
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
	if settings.Schedule, err = backup.ParseSchedule(flags.FullSchedule); err != nil {
		return Settings{}, err
	}
	if settings.Policy, err = retention.ParsePolicy(flags.Keep.Policy); err != nil {
		return Settings{}, err
	}
	settings.Keys, err = format.LoadKeys(format.KeyFiles{
		Recipients: flags.Recipients, Identities: flags.Identities, SigningKey: flags.SigningKey, TrustedKeys: flags.TrustedKeys,
	})
	return settings, err
}

// Archive is what is kept in the store.
func (s Settings) Archive() *archive.Archive { return archive.New(s.Store, s.Keys) }

// Told is what the running wrapper tells the commands of its flags. Paths become absolute, since those may run elsewhere.
func Told(flags commandline.Backups, volumeDir string) Flags {
	return Flags{
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
	told, err := NewClient(port).Flags(ctx)
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

const (
	redraw = 200 * time.Millisecond // at most so often
	settle = time.Second            // before a rate means anything
)

// clearLine goes to the beginning of a terminal's line and empties it (ECMA-48).
const clearLine = "\r\x1b[K"

// Meter shows at a terminal how far something is: bytes, rate and time left, in one line that is written again and again. It
// belongs to one goroutine. The zero value shows nothing.
type Meter struct {
	to    io.Writer // nil shows nothing
	now   func() time.Time
	began time.Time
	drawn time.Time
}

// NewMeter returns a meter that writes to a terminal; to is nil if there is none.
func NewMeter(to io.Writer) *Meter { return &Meter{to: to, now: time.Now} }

// Show says that so many bytes are done. total is 0 if it is not known.
func (m *Meter) Show(what string, done, total int64) {
	if m.to == nil {
		return
	}
	now := m.now()
	if m.began.IsZero() {
		m.began = now
	}
	if now.Sub(m.drawn) < redraw {
		return
	}
	m.drawn = now
	fmt.Fprint(m.to, clearLine, what, ": ", amount(done, total, now.Sub(m.began))) //nolint:errcheck // nobody is left to tell
}

// Following shows how much of a path's database a restore has written to a file, while it runs.
func (m *Meter) Following(file string, restore Restorer) Restorer {
	return func(ctx context.Context, path archive.Path) (archive.Result, error) {
		ended, shown := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(shown)
			for ticker := time.NewTicker(redraw); ; {
				select {
				case <-ended:
					ticker.Stop()
					m.Clear()
					return
				case <-ticker.C:
					if is, err := os.Stat(file); err == nil {
						m.Show("restored", min(is.Size(), path.Full.Database.Bytes), path.Full.Database.Bytes)
					}
				}
			}
		}()
		defer func() { close(ended); <-shown }()
		return restore(ctx, path)
	}
}

// Clear takes the line away, for what is said next.
func (m *Meter) Clear() {
	if m.to != nil && !m.drawn.IsZero() {
		fmt.Fprint(m.to, clearLine) //nolint:errcheck // nobody is left to tell
	}
}

func amount(done, total int64, took time.Duration) string {
	text := terminal.Size(done)
	if total > 0 {
		text += " of " + terminal.Size(total)
	}
	if took < settle || done <= 0 {
		return text
	}
	rate := float64(done) / took.Seconds()
	text += fmt.Sprintf(", %s/s", terminal.Size(int64(rate)))
	if left := float64(total-done) / rate; total > done {
		text += fmt.Sprintf(", %v left", terminal.Rounded(time.Duration(left*float64(time.Second))))
	}
	return text
}

// count is a number of things, of which the word names one.
func count[N int | int64](number N, word string) string {
	if number == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", number, word)
}
