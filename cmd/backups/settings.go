// Package backups implements the commands `etcd-wrapper backup …` and `etcd-wrapper restore`: it lists, tests, exports, copies, prunes
// and restores what a store has. Package main reads the command line, and turns errors into exit statuses.
//
// A command works on a Settings, returns a result that prints itself, and may return an error with it. Nothing is overwritten, and
// nothing is left behind by a command that fails. A store is copied only to a place that Copy marked, and only while both have one
// history. The package makes no backups: `backup now` asks the running wrapper, by the endpoints in local.go.
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

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/locate"
	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/readiness/status/terminal"
)

// Settings are the flags about backups, read and checked.
type Settings struct {
	Flags     commandline.StoreFlags // the flags that they were read from
	VolumeDir string                 // of the wrapper that was asked; empty if none was
	Store     store.Store            // nil without --backup-store
	Keys      *format.Keys
	Keep      commandline.Keep
	Policy    retention.Policy // of Keep
	Inspect   Inspect
	// AcceptUnsigned is --accept-unsigned: backups of etcd-backup-restore, which have no signature, are read although keys are trusted.
	AcceptUnsigned bool
}

// Inspect opens a database for the first time, in a process of its own: see restore.Options. It may be nil.
type Inspect = func(ctx context.Context, path string) error

// Read checks the flags and everything that they name except the store, which it does not contact. The error is one sentence that
// begins with a flag.
func Read(flags commandline.Backups) (Settings, error) {
	settings := Settings{Flags: flags.StoreFlags, Keep: flags.Keep}
	var err error
	if flags.Store != "" {
		if settings.Store, err = locate.Open(flags.Store); err != nil {
			return Settings{}, err
		}
	}
	if settings.Policy, err = retention.ParsePolicy(cmp.Or(flags.Keep.Policy, commandline.DefaultKeep)); err != nil {
		return Settings{}, err
	}
	settings.Keys, err = format.LoadKeys(format.KeyFiles{
		Recipients: flags.Recipients, Identities: flags.Identities, SigningKey: flags.SigningKey, TrustedKeys: flags.TrustedKeys,
	})
	return settings, err
}

// Archive returns the archive in the store.
func (s Settings) Archive() *archive.Archive { return archive.New(s.Store, s.Keys) }

// FlagsOf returns what the running wrapper shares with the commands of its flags. Paths become absolute: commands run elsewhere.
func FlagsOf(flags commandline.Backups, volumeDir string) Flags {
	return Flags{
		Store: flags.Store, Keep: flags.Keep.Policy, Identities: absolute(flags.Identities), SigningKey: absolute(flags.SigningKey),
		TrustedKeys: absolute(flags.TrustedKeys), VolumeDir: absolute(volumeDir),
	}
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil && path != "" {
		return full
	}
	return path
}

// ErrNoStore reports that neither a flag nor a running wrapper names a store.
var ErrNoStore = errors.New("--backup-store: is missing; set it, or ETCD_WRAPPER_BACKUP_STORE, as for start-etcd")

// Find reads the flags of a command. Without --backup-store it takes those of the wrapper that runs on this host; flags that are set
// take precedence. The error is about a flag.
func Find(ctx context.Context, flags commandline.Backups, port uint16) (Settings, error) {
	if flags.Store != "" {
		return Read(flags)
	}
	running, err := NewClient(port).Flags(ctx)
	if err != nil {
		return Settings{}, fmt.Errorf("%w; asking a running wrapper failed: %w", ErrNoStore, err)
	}
	if !flags.Keep.Given {
		flags.Keep = commandline.Keep{Policy: running.Keep, Given: true}
	}
	flags.Store = running.Store
	flags.Identities, flags.TrustedKeys = cmp.Or(flags.Identities, running.Identities), cmp.Or(flags.TrustedKeys, running.TrustedKeys)
	flags.SigningKey = cmp.Or(flags.SigningKey, running.SigningKey)
	settings, err := Read(flags)
	settings.VolumeDir = running.VolumeDir
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

// Show shows how many bytes are done. total is 0 if it is unknown.
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

// WhileRestoring shows how much of a database a restore has written to a file, while it runs.
func (m *Meter) WhileRestoring(file string, restore RestoreFunc) RestoreFunc {
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
