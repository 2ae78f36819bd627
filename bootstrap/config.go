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

// A ConfigPreview is the part of a configuration that determines how early it may be fetched.
type ConfigPreview struct {
	// NewAlone reports whether the configuration is for the only member of a new cluster. In that case the sidecar
	// returns the same configuration before and after an initialization, because there are no other members that
	// could affect it.
	NewAlone bool
	// LogDir is the directory of etcd's log, or "" if the configuration names none.
	LogDir string
}

// Preview reads a configuration, which need not be valid.
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

// StoreConfig writes a copy of the fetched configuration to path, for operators' debug containers. Only the owner can
// read it. The file is replaced atomically, but not flushed: after a power loss the configuration is fetched again.
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

// ErrCertificates means that certificate files are unusable at the moment: a file is missing, truncated or does not
// match its pair, or its mount hangs. This happens while certificates are being replaced, so callers retry and keep
// the result of a validation. The check of etcd's configuration and the wrapper's own server return it.
var ErrCertificates = errors.New("certificate files cannot be used now")

// Mark returns an error with the text of err that also matches kind in errors.Is.
func Mark(err, kind error) error { return marked{err, kind} }

type marked struct{ cause, kind error }

func (m marked) Error() string { return m.cause.Error() }

func (m marked) Unwrap() []error { return []error{m.cause, m.kind} }

// ForceNote is the file on a volume that records that etcd was started with force-new-cluster. If the key stays in
// etcd's configuration, it must not be performed again, because every start would drop the members that have joined
// since.
type ForceNote struct{ path string }

// ForceNoteOn returns the note on a volume.
func ForceNoteOn(volumeDir string) ForceNote {
	return ForceNote{filepath.Join(volumeDir, "force-new-cluster.done")}
}

// Exists reports whether force-new-cluster was performed. A file that cannot be inspected counts as the note.
func (n ForceNote) Exists() bool {
	_, err := os.Lstat(n.path)
	return !os.IsNotExist(err)
}

// Write records that force-new-cluster was performed.
func (n ForceNote) Write() error {
	return disk.Replace(n.path, []byte("etcd was started with force-new-cluster; remove the key from its configuration\n"))
}

// Remove allows force-new-cluster to be performed again. Call it at a start without the key.
func (n ForceNote) Remove() error {
	if !n.Exists() {
		return nil
	}
	return disk.Remove(n.path)
}

// ExplainError adds advice to an error of the operating system or of etcd, such as how full a disk is or which user
// this process runs as. dir is the place of the error, unless the error names a file. The result wraps err; an error
// that already has advice is returned unchanged. ExplainError reads the disk, so it may block.
func ExplainError(err error, dir string) error {
	if _, explained := errors.AsType[*explainedError](err); explained || err == nil {
		return err
	}
	if path := pathOf(err); path != "" {
		dir = filepath.Dir(path)
	}
	switch {
	// etcd reports fatal errors as text.
	case isErrno(err, syscall.ENOSPC), isErrno(err, syscall.EDQUOT):
		return &explainedError{err, freeSpace(dir) + "enlarge the volume or make room on it"}
	case strings.Contains(err.Error(), "failed to repair WAL"):
		return &explainedError{err, freeSpace(dir) + "etcd repairs the end of a log once it has room for a copy of its last file: enlarge the volume or make room on it"}
	case isErrno(err, syscall.EADDRINUSE):
		return &explainedError{err, "end the process that listens there"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), deniedFile.MatchString(err.Error()):
		return &explainedError{err, fmt.Sprintf("check its owner and mode; this process is user %d, group %d", os.Geteuid(), os.Getegid())}
	case strings.Contains(err.Error(), "tocommit("):
		return &explainedError{err, "the data lack what this member has confirmed to its leader, as after a volume was rolled back: " + joinAnew}
	case strings.Contains(err.Error(), "disallowed v2 WAL"), strings.Contains(err.Error(), "disallowed custom content in v2store"):
		return &explainedError{err, "etcd 3.4 or older wrote these data, or etcd's v2 API was used: run them with etcd 3.5 and --snapshot-count=1 once, " +
			"write a key and stop it; etcd is upgraded one minor version at a time"}
	case strings.Contains(err.Error(), "conflict with committed entry"), strings.Contains(err.Error(), "member unknown"):
		return &explainedError{err, "the data contradict those of the other members, as after a volume was rolled back: " + joinAnew}
	case strings.Contains(err.Error(), "cannot fetch cluster info from peer urls"):
		return &explainedError{err, "none of the members that this one joins answered; the next start asks them again"}
	case strings.Contains(err.Error(), "failed to find local ID"), strings.Contains(err.Error(), "removed from its cluster"):
		return &explainedError{err, "see etcdctl member list on another member; if this one was removed, do not start it again, or, to add it again, " + joinAnew}
	}
	return err
}

// joinAnew explains how to replace a member whose data is unusable.
const joinAnew = "start with --recover=auto, without a sidecar, and it joins as a new member; or move its data directory away, remove it if it is still listed, and add it again"

// deniedFile matches a file in one of etcd's messages. A store uses the same words for credentials, which have
// neither owner nor mode.
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

// freeSpace returns how full a disk is, as the first clause of a sentence, or "" if that is unknown.
func freeSpace(dir string) string {
	left, size, err := disk.Space(dir)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s has %d MiB free of %d MiB; ", dir, left>>20, size>>20)
}

// pathOf returns the file that an error names, or "".
func pathOf(err error) string {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file.Path
	}
	if renamed, ok := errors.AsType[*os.LinkError](err); ok {
		return renamed.New
	}
	return ""
}
