//go:build !linux

package capture

import (
	"errors"
	"io"
)

// direct is only supported on Linux.
func (p *paced) direct(*io.LimitedReader) (int64, error) { return 0, errors.ErrUnsupported }
