package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"etcd-wrapper/internal/disk"
)

// ConfigPreview holds the settings that determine how early a configuration may be fetched.
type ConfigPreview struct {
	// NewAlone reports whether the configuration is for a new single-member cluster. For a single-member cluster,
	// the sidecar returns the same configuration before and after initialization, because no other member can
	// change it.
	NewAlone bool
	// LogDir is the WAL directory, or "" if the configuration does not set one.
	LogDir string
}

// Preview reads a configuration without validating it.
func Preview(config []byte) ConfigPreview {
	var keys struct {
		Cluster string `json:"initial-cluster"`
		State   string `json:"initial-cluster-state"`
		DataDir string `json:"data-dir"`
		WALDir  string `json:"wal-dir"`
	}
	if err := yaml.Unmarshal(config, &keys); err != nil {
		return ConfigPreview{}
	}
	preview := ConfigPreview{NewAlone: keys.State == "new" && strings.Count(keys.Cluster, "=") == 1 && !strings.Contains(keys.Cluster, ",")}
	switch {
	case keys.WALDir != "":
		preview.LogDir = filepath.Clean(keys.WALDir)
	case keys.DataDir != "":
		preview.LogDir = filepath.Join(keys.DataDir, "member", "wal")
	}
	return preview
}

// StoreConfig writes a copy of the fetched configuration to path for use in debug containers. Only the owner can
// read the file. StoreConfig replaces the file atomically but does not sync it, because the configuration is
// fetched again after a power failure.
func StoreConfig(path string, yaml []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", err)
	}
	_, err = temporary.Write(yaml)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot store etcd configuration: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}

// ErrCertificates means that certificate files are temporarily unusable: a file is missing or truncated, a
// certificate does not match its key, or the mount is hanging. Callers retry without repeating the validation,
// because a certificate rotation may be in progress.
var ErrCertificates = errors.New("certificate files are temporarily unusable")

// Mark returns an error that has the text of err and also matches kind in errors.Is.
func Mark(err, kind error) error { return marked{err, kind} }

type marked struct{ cause, kind error }

func (m marked) Error() string { return m.cause.Error() }

func (m marked) Unwrap() []error { return []error{m.cause, m.kind} }

// A ForceNote is a file on the volume that records that etcd was started with force-new-cluster. The note prevents
// the next start from applying the option again, which would drop any members added in the meantime.
type ForceNote struct{ path string }

// ForceNoteOn returns the note on a volume.
func ForceNoteOn(volumeDir string) ForceNote {
	return ForceNote{filepath.Join(volumeDir, "force-new-cluster.done")}
}

// Exists reports whether force-new-cluster was applied. A file that cannot be read is assumed to exist.
func (n ForceNote) Exists() bool {
	_, err := os.Lstat(n.path)
	return !os.IsNotExist(err)
}

// Write records that force-new-cluster was applied.
func (n ForceNote) Write() error {
	return disk.Replace(n.path, []byte("etcd was started with force-new-cluster; remove the key from the etcd configuration\n"))
}

// Remove allows force-new-cluster to be applied again. Call Remove when etcd is started without force-new-cluster.
func (n ForceNote) Remove() error {
	if !n.Exists() {
		return nil
	}
	return disk.Remove(n.path)
}

// ExplainError adds advice to an error from the operating system or etcd, for example the free disk space or the
// user that the process runs as. If the error does not name a file, ExplainError assumes that it occurred in dir.
// The result wraps err. Errors that already have advice are returned unchanged. ExplainError reads the disk, so it
// may block.
func ExplainError(err error, dir string) error {
	if _, explained := errors.AsType[*explainedError](err); explained || err == nil {
		return err
	}
	if path := pathOf(err); path != "" {
		dir = filepath.Dir(path)
	}
	switch {
	// Errors from etcd may be plain text, so the cases also search the message.
	case isErrno(err, syscall.ENOSPC), isErrno(err, syscall.EDQUOT):
		return &explainedError{err, freeSpace(dir) + "expand the volume or free up space on it"}
	case strings.Contains(err.Error(), "failed to repair WAL"):
		return &explainedError{err, freeSpace(dir) + "etcd needs space for a copy of the last WAL file to repair the log; expand the volume or free up space on it"}
	case isErrno(err, syscall.EADDRINUSE):
		return &explainedError{err, "stop the process that is listening on this address"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), deniedFile.MatchString(err.Error()):
		return &explainedError{err, fmt.Sprintf("check the owner and mode; this process runs as user %d, group %d", os.Geteuid(), os.Getegid())}
	case strings.Contains(err.Error(), "tocommit("):
		return &explainedError{err, "the data directory is missing entries that this member acknowledged to the leader, perhaps because the volume was rolled back; to recover: " + rejoin}
	case strings.Contains(err.Error(), "disallowed v2 WAL"), strings.Contains(err.Error(), "disallowed custom content in v2store"):
		return &explainedError{err, "the data was written by etcd 3.4 or earlier or through the v2 API; to recover: start etcd 3.5 on it once with --snapshot-count=1, " +
			"write a key and stop it; upgrade etcd one minor version at a time"}
	case strings.Contains(err.Error(), "conflict with committed entry"), strings.Contains(err.Error(), "member unknown"):
		return &explainedError{err, "the data directory conflicts with the other members, perhaps because the volume was rolled back; to recover: " + rejoin}
	case strings.Contains(err.Error(), "cannot fetch cluster info from peer urls"):
		return &explainedError{err, "no member of the existing cluster responded; the next start tries again"}
	case strings.Contains(err.Error(), "failed to find local ID"), strings.Contains(err.Error(), "removed from its cluster"):
		return &explainedError{err, "run \"etcdctl member list\" on another member; if this member was removed, do not start it again; to add it back, " + rejoin}
	}
	return err
}

const rejoin = "restart the member with --recover=auto and without a sidecar to rejoin as a new member; or move its data directory aside, remove the member if it is still listed, and add it again"

// deniedFile matches etcd messages about a file. The path is required because object stores use the same wording
// for rejected credentials.
var deniedFile = regexp.MustCompile(fmt.Sprintf(`[a-z]+ /\S+: (%v|%v)`, syscall.EACCES, syscall.EPERM))

// explainedError is an error with advice.
type explainedError struct {
	cause  error
	advice string
}

func (a *explainedError) Error() string { return a.cause.Error() + " (" + a.advice + ")" }

func (a *explainedError) Unwrap() error { return a.cause }

func isErrno(err error, number syscall.Errno) bool {
	return errors.Is(err, number) || strings.Contains(err.Error(), number.Error())
}

// freeSpace returns a message prefix that states the free disk space, or "" if it is unknown.
func freeSpace(dir string) string {
	left, size, err := disk.Space(dir)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s has %d of %d MiB free; ", dir, left>>20, size>>20)
}

// pathOf returns the path of the file in an error, or "".
func pathOf(err error) string {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file.Path
	}
	if renamed, ok := errors.AsType[*os.LinkError](err); ok {
		return renamed.New
	}
	return ""
}
