//go:build !linux

package steady

import "os"

// StartFlush does nothing: it is implemented only on Linux.
func StartFlush(*os.File, int64, int64) {}

// Flush does nothing: it is implemented only on Linux.
func Flush(*os.File) {}

func flush(*os.File, int64, int64, bool) {}
