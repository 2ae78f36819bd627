//go:build !linux

package steady

import "os"

// StartFlush does nothing: only Linux has such a call.
func StartFlush(*os.File, int64, int64) {}

// Flush does nothing: only Linux has such a call.
func Flush(*os.File) {}

func flush(*os.File, int64, int64, bool) {}
