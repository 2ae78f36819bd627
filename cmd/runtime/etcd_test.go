package runtime

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/member/maintenance"
)

func TestDescribeLowSpace(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		volume  maintenance.Volume
		warning string // expected start of the message; empty if the space suffices
	}{
		"not inspected":                        {maintenance.Volume{}, ""},
		"half free":                            {maintenance.Volume{Free: 5 * gib, Size: 10 * gib, Copy: gib}, ""},
		"a tenth free":                         {maintenance.Volume{Free: gib, Size: 10 * gib}, ""},
		"less than a tenth free":               {maintenance.Volume{Free: gib / 2, Size: 10 * gib}, "512.0 MiB of 10.0 GiB free: "},
		"a hundredth of a large volume free":   {maintenance.Volume{Free: 5 * gib, Size: 500 * gib}, ""},
		"too small for a copy of the database": {maintenance.Volume{Free: 3 * gib, Size: 10 * gib, Copy: 3 * gib}, "3.0 GiB of 10.0 GiB free: "},
		"nothing free":                         {maintenance.Volume{Size: gib}, "0 bytes of 1.0 GiB free: "},
	} {
		if c.warning == "" {
			assert.Empty(t, describeLowSpace(c.volume), name)
		} else {
			assert.Contains(t, describeLowSpace(c.volume), c.warning, name)
		}
	}
}
