package commandline

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size, written as Kubernetes writes quantities: a whole number of bytes, or one with Ki, Mi, Gi, Ti, k, M, G or T.
type Bytes int64

var units = []struct {
	name  string
	bytes int64
}{
	{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1},
}

// UnmarshalText is called by kong, which names the flag in front of the error.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, unit := range units {
		number, has := strings.CutSuffix(string(text), unit.name)
		if !has {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			break
		}
		*b = Bytes(n * unit.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size, such as 1Gi or 500M", text)
}

// String is the size in the largest unit that it is a whole number of.
func (b Bytes) String() string {
	for _, unit := range units {
		if int64(b)%unit.bytes == 0 && b != 0 {
			return strconv.FormatInt(int64(b)/unit.bytes, 10) + unit.name
		}
	}
	return "0"
}
