package etcdconf

import (
	"path/filepath"
	"slices"
	"strings"
)

var (
	// sharedDirectories belong to everybody; a directory below them may be etcd's.
	sharedDirectories = []string{"/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"}
	// systemTrees belong to the system, down to the leaves.
	systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"}
)

// checkDirectories guards the places that etcd writes to, and that the sidecar may delete.
func (s *settings) checkDirectories() error {
	if s.Dir == "" {
		return problem("data-dir", "is required")
	}
	if err := checkDirectory("data-dir", s.Dir); err != nil {
		return err
	}
	if s.WalDir == "" {
		return nil
	}
	return checkDirectory("wal-dir", s.WalDir)
}

func checkDirectory(key, path string) error {
	clean := filepath.Clean(path)
	switch {
	case strings.TrimSpace(path) != path:
		return problem(key, "%s begins or ends with white space", quote(path))
	case !filepath.IsAbs(path):
		return problem(key, "%s is not an absolute path", quote(path))
	case slices.Contains(sharedDirectories, clean) || slices.ContainsFunc(systemTrees, contains(clean)):
		return problem(key, "%s is a directory of the system", quote(path))
	}
	return nil
}

// contains returns a predicate: is path the tree itself or below it?
func contains(path string) func(tree string) bool {
	return func(tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }
}
