package commandline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Threshold is how much of a database must be free for it to be defragmented, as --defrag-threshold has it:
// "free=45%,min=100Mi", or "never", which is the zero Threshold.
type Threshold struct {
	Free float64 // the part of the file, from 0 to 1
	Min  Bytes
}

// UnmarshalText reads what the flag says. The error is one sentence.
func (t *Threshold) UnmarshalText(text []byte) error {
	var read Threshold
	if string(text) != "never" {
		for part := range strings.SplitSeq(string(text), ",") {
			if err := read.set(part); err != nil {
				return fmt.Errorf("%w; write free=45%%,min=100Mi, or never", err)
			}
		}
		if read.Free == 0 || read.Min == 0 {
			return errors.New("free and min must both be given, as in free=45%,min=100Mi, and be more than 0; never turns it off")
		}
	}
	*t = read
	return nil
}

func (t *Threshold) set(part string) (err error) {
	name, value, _ := strings.Cut(part, "=")
	switch name {
	case "free":
		t.Free, err = percentage(value)
	case "min":
		err = t.Min.UnmarshalText([]byte(value))
	default:
		err = fmt.Errorf("%q is neither free=… nor min=…", part)
	}
	return err
}

// percentage reads "45%" as 0.45.
func percentage(text string) (float64, error) {
	number, is := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseUint(number, 10, 8)
	if err != nil || !is || percent < 1 || percent > 99 {
		return 0, fmt.Errorf("%q is no percentage from 1%% to 99%%", text)
	}
	return float64(percent) / 100, nil
}
