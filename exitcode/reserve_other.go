//go:build !linux

package exitcode

import "os"

// reserve does nothing, because space can only be reserved on Linux.
func reserve(*os.File, int64) {}
