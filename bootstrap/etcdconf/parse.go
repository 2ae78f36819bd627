// Package etcdconf turns the YAML that the sidecar serves into a checked configuration of the embedded etcd.
//
// It owns the rule that a malformed value ends in one sentence that names its key. etcd's own reader answers some of them
// with os.Exit, some with a panic, and some only when the server already starts. Keys that etcd does not know are set
// aside and reported. The command calls Parse when the lifecycle has fetched a configuration; the embedded etcd and the
// readiness server live on what it returns.
package etcdconf

import (
	"fmt"
	"net/url"
	"slices"

	"go.etcd.io/etcd/server/v3/embed"
)

// Checked is a configuration that etcd accepts, and what was left out of it.
type Checked struct {
	// Etcd has neither a logger nor a ZapLoggerBuilder: whoever starts etcd supplies one.
	Etcd *embed.Config
	// Unknown are the keys that etcd does not know, sorted by key. As for etcd, the letter case of a key makes no difference.
	Unknown []UnknownKey
	// Sidecars are the keys that are meant for the sidecar, sorted: the operator always sends them.
	Sidecars []string
	// Ignored are the keys that etcd knows but the wrapper decides, sorted: where log lines go and in what form.
	Ignored []string
	// Warnings are sentences about what etcd takes, but perhaps in another way than was meant.
	Warnings []string
}

// Parse checks yaml and returns etcd's configuration made from it. It reads the certificate and key files that are named
// there, looks whether there is a log where etcd will look for one, and touches no other file. Every error is a
// *KeyError, except when the process has no file descriptor left. It is bootstrap.ErrCertificates, too, if only the files
// are at fault, at this moment: they are being replaced, perhaps, or a mount hangs. Then it is worth trying again.
func Parse(yaml []byte) (checked *Checked, err error) {
	// The last net: a panic in etcd or in the YAML reader must not end the process, which would look like a crash of etcd.
	defer func() {
		if cause := recover(); cause != nil {
			checked, err = nil, problem("", "cannot be read, the reader panicked with %s", quote(fmt.Sprint(cause)))
		}
	}()

	raw, warnings, err := decode(yaml)
	if err != nil {
		return nil, err
	}
	sifted, err := sift(raw)
	if err != nil {
		return nil, err
	}
	cfg, doubts, err := configure(sifted.kept)
	if err != nil {
		return nil, err
	}
	return &Checked{
		Etcd: cfg, Unknown: sifted.unknown, Sidecars: sifted.sidecars, Ignored: sifted.ignored,
		Warnings: slices.Concat(warnings, sifted.warnings, doubts),
	}, nil
}

// configure checks the values of a document whose keys and types are known to be right, and lets etcd read it.
func configure(document map[string]any) (cfg *embed.Config, warnings []string, err error) {
	s, err := view(document)
	if err != nil {
		return nil, nil, err
	}
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	if err := renameExperimental(document); err != nil {
		return nil, nil, err
	}
	cfg, err = handOver(document, s)
	return cfg, s.warnings, err
}

// ServerCertificate returns the paths of the pair that etcd shows to its clients. ok is false if no client listener uses
// TLS, or if etcd makes a certificate of its own (auto-tls).
func (c *Checked) ServerCertificate() (certFile, keyFile string, ok bool) {
	info := c.Etcd.ClientTLSInfo
	if info.CertFile == "" || !slices.ContainsFunc(c.Etcd.ListenClientUrls, usesTLS) {
		return "", "", false
	}
	return info.CertFile, info.KeyFile, true
}

func usesTLS(u url.URL) bool { return u.Scheme == "https" || u.Scheme == "unixs" }
