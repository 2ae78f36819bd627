package backup

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func at(t testing.TB, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse("2006-01-02 15:04:05", text)
	require.NoError(t, err)
	return parsed
}

func TestSchedule_next(t *testing.T) {
	for _, example := range []struct{ schedule, after, next string }{
		{"0 * * * *", "2026-11-22 00:00:00", "2026-11-22 01:00:00"},
		{"@hourly", "2026-11-22 00:59:59", "2026-11-22 01:00:00"},
		{"@daily", "2026-12-31 00:00:00", "2027-01-01 00:00:00"},
		{"@weekly", "2026-11-22 00:00:00", "2026-11-29 00:00:00"}, // a Sunday
		{"30 3 * * 7", "2026-11-23 00:00:00", "2026-11-29 03:30:00"},
		{"0 0 31 * *", "2021-01-31 00:00:00", "2021-03-31 00:00:00"},
		{"0 0 31 * *", "2026-08-31 00:00:00", "2026-10-31 00:00:00"},
		{"0 0 29 2 *", "2026-03-01 00:00:00", "2028-02-29 00:00:00"},
		{"0 0 29 2 *", "2096-02-29 00:00:00", "2104-02-29 00:00:00"}, // 2100 is not a leap year
		{"*/7 * * * *", "2026-11-22 00:56:00", "2026-11-22 01:00:00"},
		{"0 12 1 * MON", "2026-11-22 00:00:00", "2026-11-23 12:00:00"}, // the first of the month and every Monday
		{"15,45 8-10/2 * jan-mar *", "2026-11-22 00:00:00", "2027-01-01 08:15:00"},
		{"@every 6h", "2026-11-22 00:00:00", "2026-11-22 06:00:00"},
		{"@every 90m", "2026-11-22 01:29:59", "2026-11-22 01:30:00"},
		{"  @every   36h ", "2026-11-22 12:00:00", "2026-11-24 00:00:00"},
	} {
		schedule, err := ParseSchedule(example.schedule)
		require.NoError(t, err, example.schedule)
		assert.Equal(t, at(t, example.next), schedule.Next(at(t, example.after)), "%s after %s", example.schedule, example.after)
	}
}

// The time zone does not matter, even on the night when an hour occurs twice.
func TestSchedule_usesUTC(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zones on this machine")
	}
	schedule, err := ParseSchedule("30 2 * * *")
	require.NoError(t, err)
	next := schedule.Next(at(t, "2026-10-25 00:45:00").In(berlin))
	assert.Equal(t, at(t, "2026-10-25 02:30:00"), next)
}

func TestParseSchedule_rejectsInvalidSchedules(t *testing.T) {
	for text, why := range map[string]string{
		"":                        "must be five cron fields",
		"0 * * *":                 "must be five cron fields",
		"0 0 * * * *":             "must be five cron fields",
		"@fortnightly":            "must be five cron fields",
		"@every":                  "must be five cron fields",
		"TZ=Asia/Tokyo 0 3 * * *": "must be five cron fields",
		"TZ=Asia/Tokyo 0 3 * *":   "is invalid",
		"60 * * * *":              "is invalid",
		"0 24 * * *":              "is invalid",
		"0 0 0 * *":               "is invalid",
		"0 0 * 13 *":              "is invalid",
		"0 0 * * 8":               "is invalid",
		"*/0 * * * *":             "is invalid",
		"a * * * *":               "is invalid",
		"0 0 L * *":               "is invalid",
		"0 0 31 2 *":              "never matches",
		"0 0 30 feb *":            "never matches",
		"0 0 31 4,6,9,11 *":       "never matches",
		"@every 6":                "needs a duration",
		"@every -6h":              "between",
		"@every 1s":               "between",
		"@every 20000h":           "between",
	} {
		_, err := ParseSchedule(text)
		require.ErrorContains(t, err, "--backup-full-schedule: ", text)
		assert.ErrorContains(t, err, why, text)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestSchedule_shiftsEachClusterWithinTheHour(t *testing.T) {
	hourly, err := ParseSchedule("@hourly")
	require.NoError(t, err)
	shifts := map[time.Duration]bool{}
	ids := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		cluster := ids.Uint64()
		shift := hourly.For(cluster).shift
		shifts[shift] = true
		assert.Less(t, shift, time.Hour)
		assert.Equal(t, shift, hourly.For(cluster).shift, "the offset does not change")
	}
	assert.Greater(t, len(shifts), 500)
	shifted := hourly.For(90)
	assert.Equal(t, at(t, "2026-11-22 00:01:30"), shifted.Next(at(t, "2026-11-22 00:00:00")))
	assert.Equal(t, at(t, "2026-11-22 01:01:30"), shifted.Next(at(t, "2026-11-22 00:01:30")))
	assert.Equal(t, "@hourly", shifted.String())
}

func TestClock_reportsJumpsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump time.Duration
		c := newClock(func() time.Time { return time.Now().Add(jump) })
		time.Sleep(30 * 24 * time.Hour)
		assert.Empty(t, c.check(), "time passes")
		for _, ahead := range []time.Duration{8 * time.Hour, 0, -2 * time.Minute} {
			jump = ahead
			assert.Contains(t, c.check(), "the system clock jumped by ")
			time.Sleep(afterJump - time.Second)
			assert.NotEmpty(t, c.check())
			time.Sleep(time.Second)
			assert.Empty(t, c.check())
		}
		jump += 50 * time.Second
		assert.Empty(t, c.check(), "clocks are corrected")
	})
}
