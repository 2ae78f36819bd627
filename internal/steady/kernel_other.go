//go:build !linux

package steady

import "os"

// StartFlush does nothing because it is implemented only for Linux.
func StartFlush(*os.File, int64, int64) {}

// Flush does nothing because it is implemented only for Linux.
func Flush(*os.File) {}

func flush(*os.File, int64, int64, bool) {}
