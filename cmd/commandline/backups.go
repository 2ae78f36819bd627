package commandline

import (
	"errors"
	"fmt"
	"time"
)

// Backups are the flags about backups, which start-etcd shares with the commands that read what it wrote. What they name is
// looked at by who uses it: the packages below backup refuse a URL, a schedule, a policy or a key that is wrong, with
// errors that begin with the flag.
type Backups struct {
	Store        string        `name:"backup-store" group:"Backups" placeholder:"URL" help:"Where backups are kept: file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azblob://CONTAINER/PREFIX, with endpoint=, region=, path-style=, account= and ca= behind a question mark; only with --standalone."`
	Interval     time.Duration `name:"backup-interval" group:"Backups" default:"1s" help:"A change is in the store after at most this and one upload."`
	FullSchedule string        `name:"backup-full-schedule" group:"Backups" default:"0 * * * *" help:"When the whole database is backed up: five cron fields in UTC, @hourly, @daily, @weekly or @every 6h; each cluster has a shift of its own within the hour."`
	Keep         Keep          `name:"backup-keep" group:"Backups" default:"${keep}" help:"What is kept: every revision within points, beyond that the last verified full of so many hours, days and weeks."`
	Recipients   string        `name:"backup-recipients" group:"Backups" placeholder:"PATH" help:"File of age recipients that backups are encrypted to."`
	Identities   string        `name:"backup-identities" group:"Backups" placeholder:"PATH" help:"File of age identities that decrypt them, to verify and to restore."`
	SigningKey   string        `name:"backup-signing-key" group:"Backups" placeholder:"PATH" help:"ed25519 key (PEM) that manifests are signed with."`
	TrustedKeys  string        `name:"backup-trusted-keys" group:"Backups" placeholder:"PATH" help:"ed25519 public keys (PEM); what none of them signed is not believed."`
	SpoolLimit   Bytes         `name:"backup-spool-limit" group:"Backups" default:"1Gi" help:"How much may wait on the volume while the store is away."`
}

// What the flags can be: sooner than a marker is made nothing can be sent, and a segment has to fit into the spool.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	minSpool    = 32 << 20 // bytes
)

// Validate is called by kong. Each error names the flag.
func (f *Backups) Validate() error {
	switch {
	case f.Interval < minInterval || f.Interval > maxInterval:
		return fmt.Errorf("--backup-interval: %v is not between %v and %v", f.Interval, minInterval, maxInterval)
	case f.SpoolLimit < minSpool:
		return fmt.Errorf("--backup-spool-limit: %v is less than %v", f.SpoolLimit, Bytes(minSpool))
	default:
		return nil
	}
}

// Reading are the flags that another process of this program needs to read the same backups, as arguments.
func (f *Backups) Reading() (args []string) {
	for _, flag := range f.files() {
		if flag.value != "" {
			args = append(args, flag.name+"="+flag.value)
		}
	}
	return append(args, "--backup-store="+f.Store)
}

type named struct{ name, value string }

// files are the flags that name files of keys.
func (f *Backups) files() []named {
	return []named{
		{"--backup-recipients", f.Recipients},
		{"--backup-identities", f.Identities},
		{"--backup-signing-key", f.SigningKey},
		{"--backup-trusted-keys", f.TrustedKeys},
	}
}

// validateFor is Validate for start-etcd, where a flag that cannot have an effect is a mistake.
func (f *Backups) validateFor(standalone bool) error {
	if f.Store != "" && !standalone {
		return errors.New("--backup-store: only with --standalone; otherwise the sidecar owns backups")
	}
	for _, flag := range f.files() {
		if flag.value != "" && f.Store == "" {
			return fmt.Errorf("%s: only with --backup-store", flag.name)
		}
	}
	return f.Validate()
}
