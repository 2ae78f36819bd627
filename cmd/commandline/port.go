package commandline

import (
	"fmt"
	"math"
	"strconv"
)

// Port is a TCP port, written as Go reads numbers.
type Port uint16

// UnmarshalText is called by kong, which names the flag in front of the error.
func (p *Port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 0, 0)
	if err != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not a port", text)
	}
	*p = Port(n)
	return nil
}
