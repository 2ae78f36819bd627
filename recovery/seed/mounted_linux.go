package seed

import "golang.org/x/sys/unix"

// isMountPoint tells whether a volume, or a directory of one, is mounted there. A kernel before 5.8 does not tell.
func isMountPoint(path string) bool {
	var is unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &is)
	return err == nil && is.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
