package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParsePolicy(t *testing.T) {
	for text, expected := range map[string]Policy{
		"points=24h,hourly=24,daily=7,weekly=4": {Points: 24 * time.Hour, Hourly: 24, Daily: 7, Weekly: 4},
		"points=90m":                            {Points: 90 * time.Minute},
		"weekly=52, points=2w":                  {Points: 14 * 24 * time.Hour, Weekly: 52},
		"points=7d,hourly=0":                    {Points: 7 * 24 * time.Hour},
		"daily=30":                              {Daily: 30},
	} {
		policy, err := ParsePolicy(text)
		require.NoError(t, err, text)
		assert.Equal(t, expected, policy)
		again, err := ParsePolicy(policy.String())
		require.NoError(t, err, policy)
		assert.Equal(t, policy, again)
	}
	assert.Equal(t, "points=24h,hourly=24,daily=0,weekly=0", Policy{Points: day, Hourly: 24}.String())
}

func TestParsePolicy_errors(t *testing.T) {
	for text, why := range map[string]string{
		"":                             `"" is not points=`,
		"points":                       `points "" is not a duration`,
		"points=24":                    "not a duration",
		"points=-1h":                   "not a duration",
		"points=99999w":                "not a duration",
		"points=-1d":                   "not a duration",
		"points=1.5d":                  "not a duration",
		"hourly=-1":                    "whole number",
		"hourly=1h":                    "whole number",
		"daily=10001":                  "whole number",
		"monthly=3":                    `"monthly" is not points=`,
		"points=1h,points=2h":          "points is given twice",
		"points=1h,":                   `"" is not points=`,
		"points=0s":                    "only the newest",
		"points=0h,hourly=0":           "only the newest",
		"points=24h;hourly=24,daily=7": "not a duration",
	} {
		_, err := ParsePolicy(text)
		require.ErrorContains(t, err, "--backup-keep: ", text)
		assert.ErrorContains(t, err, why, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}
