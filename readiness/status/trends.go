package status

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Trends are how a member did in the last hours: series of as many points each, the oldest first.
type Trends struct {
	Interval  float64   `json:"interval"`           // seconds between two points; it grows with the time that they cover
	Until     time.Time `json:"until"`              // when the last point was taken
	Write     Points    `json:"write_seconds"`      // that writes took, as clients of this member saw them: the mean
	Read      Points    `json:"read_seconds"`       // that reads took, likewise
	Fsync     Points    `json:"fsync_seconds"`      // in which 99 of 100 writes of etcd's log reached the disk
	DBSize    Points    `json:"db_size"`            // bytes of the database's file
	DBInUse   Points    `json:"db_in_use"`          // bytes of it that defragmentation would keep
	BackupLag Points    `json:"backup_lag_seconds"` // since when the oldest change waits that the store has not
	Revisions Points    `json:"revisions_per_second"`
}

// Points are the numbers of a series. Where nothing was measured they are NaN, which is null in JSON.
type Points []float32

// digits are how many of each point are told.
const digits = 4

// MarshalJSON implements json.Marshaler.
func (p Points) MarshalJSON() ([]byte, error) {
	text := []byte{'['}
	for i, point := range p {
		if i > 0 {
			text = append(text, ',')
		}
		if math.IsNaN(float64(point)) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, float64(point), 'g', digits, 32)
		}
	}
	return append(text, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Points) UnmarshalJSON(text []byte) error {
	var points []*float32
	if err := json.Unmarshal(text, &points); err != nil {
		return err
	}
	*p = make(Points, len(points))
	for i, point := range points {
		if (*p)[i] = float32(math.NaN()); point != nil {
			(*p)[i] = *point
		}
	}
	return nil
}

// Happening is something that people care for: it happened once, or it began and may be over.
type TimelineEvent struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`    // one of start, readiness, leader, full_snapshot, restore_test, defragmentation, alarm, trouble, recovery, restore
	Health  string    `json:"health"`  // of what happened: ok, degraded or failed
	Message string    `json:"message"` // a clause
}
