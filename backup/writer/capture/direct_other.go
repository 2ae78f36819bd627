//go:build !linux

package capture

import (
	"errors"
	"io"
)

// direct is supported on Linux only.
func (p *paced) direct(*io.LimitedReader) (int64, error) { return 0, errors.ErrUnsupported }
