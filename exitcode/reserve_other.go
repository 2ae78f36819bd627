//go:build !linux

package exitcode

import "os"

// reserve does nothing because only Linux can reserve space.
func reserve(*os.File, int64) {}
