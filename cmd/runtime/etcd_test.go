package runtime

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/member/maintenance"
)

func TestDescribeLowSpace(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		is     maintenance.Volume
		scarce string
	}{
		"not inspected":                  {maintenance.Volume{}, ""},
		"half of it":                     {maintenance.Volume{Free: 5 * gib, Size: 10 * gib, Copy: gib}, ""},
		"a tenth":                        {maintenance.Volume{Free: gib, Size: 10 * gib}, ""},
		"less than a tenth":              {maintenance.Volume{Free: gib / 2, Size: 10 * gib}, "512.0 MiB of 10.0 GiB free: "},
		"a hundredth of a large one":     {maintenance.Volume{Free: 5 * gib, Size: 500 * gib}, ""},
		"no room for a copy of the data": {maintenance.Volume{Free: 3 * gib, Size: 10 * gib, Copy: 3 * gib}, "3.0 GiB of 10.0 GiB free: "},
		"full":                           {maintenance.Volume{Size: gib}, "0 bytes of 1.0 GiB free: "},
	} {
		if c.scarce == "" {
			assert.Empty(t, describeLowSpace(c.is), name)
		} else {
			assert.Contains(t, describeLowSpace(c.is), c.scarce, name)
		}
	}
}
