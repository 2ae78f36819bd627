// Package backups implements the commands `etcd-wrapper backup …` and `etcd-wrapper restore`: it lists, tests,
// exports, copies, prunes and restores the backups in a store. Package main parses the command line and maps errors
// to exit statuses.
//
// A command takes Settings and returns a result that can print itself, possibly together with an error. No command
// overwrites existing files or objects, and a failed command leaves no files behind. Copy writes only to a location
// that it has marked as a copy, and only while the store and the copy have the same history. The package does not
// make backups: `backup now` sends a request to the running wrapper, which handles it in local.go.
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

// Settings are the parsed and validated backup flags.
type Settings struct {
	Flags     commandline.StoreFlags // the parsed flags
	VolumeDir string                 // volume of the running wrapper; empty if --backup-store is set
	Store     store.Store            // nil without --backup-store
	Keys      *format.Keys
	Keep      string           // the value of --backup-keep; empty if it is not set
	Policy    retention.Policy // parsed from Keep
	Inspect   Inspect
	// AcceptUnsigned is set if the user passes --accept=unsigned. AcceptUnsigned allows reading etcd-backup-restore's
	// unsigned backups even if trusted keys are set.
	AcceptUnsigned bool
}

// Inspect opens an untrusted database in a separate process (see restore.Options). Inspect may be nil.
type Inspect = func(ctx context.Context, path string) error

// Read validates the flags and reads the files that they name, but does not access the store. The error starts with
// the name of the flag.
func Read(flags commandline.Backups) (Settings, error) {
	settings := Settings{Flags: flags.StoreFlags, Keep: flags.Keep}
	var err error
	if flags.Store != "" {
		if settings.Store, err = locate.Open(flags.Store); err != nil {
			return Settings{}, err
		}
	}
	if settings.Policy, err = retention.ParsePolicy(cmp.Or(flags.Keep, commandline.DefaultKeep)); err != nil {
		return Settings{}, err
	}
	settings.Keys, err = format.LoadKeys(format.KeyFiles{
		Recipients: flags.Recipients, Identities: flags.Identities, SigningKey: flags.SigningKey, TrustedKeys: flags.TrustedKeys,
	})
	return settings, err
}

// Archive returns the archive in the store.
func (s Settings) Archive() *archive.Archive { return archive.New(s.Store, s.Keys) }

// FlagsOf returns the flags that the running wrapper passes to backup commands. Paths are made absolute, because the
// commands may run in a different working directory.
func FlagsOf(flags commandline.Backups, volumeDir string) Flags {
	return Flags{
		Store: flags.Store, Keep: cmp.Or(flags.Keep, commandline.DefaultKeep), Identities: absolute(flags.Identities), SigningKey: absolute(flags.SigningKey),
		TrustedKeys: absolute(flags.TrustedKeys), VolumeDir: absolute(volumeDir),
	}
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil && path != "" {
		return full
	}
	return path
}

// ErrNoStore reports that --backup-store is not set and cannot be read from a running wrapper.
var ErrNoStore = errors.New("--backup-store: missing; set it or ETCD_WRAPPER_BACKUP_STORE to the store that start-etcd uses")

// Find parses the flags of a command. If --backup-store is not set, Find uses the flags of the wrapper on this host
// as defaults. The error names the flag that is invalid.
func Find(ctx context.Context, flags commandline.Backups, port uint16) (Settings, error) {
	if flags.Store != "" {
		return Read(flags)
	}
	running, err := NewClient(port).Flags(ctx)
	if err != nil {
		return Settings{}, fmt.Errorf("%w; cannot get the store from a running wrapper: %w", ErrNoStore, err)
	}
	flags.Keep = cmp.Or(flags.Keep, running.Keep)
	flags.Store = running.Store
	flags.Identities, flags.TrustedKeys = cmp.Or(flags.Identities, running.Identities), cmp.Or(flags.TrustedKeys, running.TrustedKeys)
	flags.SigningKey = cmp.Or(flags.SigningKey, running.SigningKey)
	settings, err := Read(flags)
	settings.VolumeDir = running.VolumeDir
	return settings, err
}

const (
	redraw = 200 * time.Millisecond // minimum interval between updates
	settle = time.Second            // minimum duration of a task before its rate is shown
)

// clearLine moves the cursor to the start of the line and clears it (ECMA-48).
const clearLine = "\r\x1b[K"

// A Meter shows the progress of a task on one line of a terminal: bytes, rate and time left. A Meter must be used
// from a single goroutine. The zero value shows nothing.
type Meter struct {
	to    io.Writer // terminal; nil disables the display
	now   func() time.Time
	began time.Time
	drawn time.Time
}

// NewMeter returns a meter that writes to the terminal to. If to is nil, the meter shows nothing.
func NewMeter(to io.Writer) *Meter { return &Meter{to: to, now: time.Now} }

// Show reports that done of total bytes have been processed. total is 0 if it is unknown.
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
	fmt.Fprint(m.to, clearLine, what, ": ", formatProgress(done, total, now.Sub(m.began))) //nolint:errcheck // the display is not essential
}

// TrackRestore returns a function that calls restore and, while it runs, shows how much of the database has been
// written.
func (m *Meter) TrackRestore(file string, restore RestoreFunc) RestoreFunc {
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
					if info, err := os.Stat(file); err == nil {
						m.Show("restored", min(info.Size(), path.Full.Database.Bytes), path.Full.Database.Bytes)
					}
				}
			}
		}()
		defer func() { close(ended); <-shown }()
		return restore(ctx, path)
	}
}

// Clear clears the line so that other output can be printed.
func (m *Meter) Clear() {
	if m.to != nil && !m.drawn.IsZero() {
		fmt.Fprint(m.to, clearLine) //nolint:errcheck // the display is not essential
	}
}

func formatProgress(done, total int64, took time.Duration) string {
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
		text += fmt.Sprintf(", %v left", terminal.Round(time.Duration(left*float64(time.Second))))
	}
	return text
}

// count formats a number and its noun, which is plural unless the number is 1.
func count[N int | int64](number N, word string) string {
	if number == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", number, word)
}
