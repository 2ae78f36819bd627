package seed

import "golang.org/x/sys/unix"

// isMountPoint reports whether a path is a mount point. Kernels before 5.8 do not report mount points, so the result
// is always false there.
func isMountPoint(path string) bool {
	var info unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &info)
	return err == nil && info.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
