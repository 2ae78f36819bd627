package status

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Trends are series of measurements of the last hours, of the same length, the oldest point first.
type Trends struct {
	Interval  float64   `json:"interval"`           // seconds between two points; it grows with the time covered
	Until     time.Time `json:"until"`              // when the last point was taken
	Write     Points    `json:"write_seconds"`      // the mean duration of clients' writes here
	Read      Points    `json:"read_seconds"`       // likewise of reads
	Fsync     Points    `json:"fsync_seconds"`      // the 99th percentile of fsync of etcd's log
	DBSize    Points    `json:"db_size"`            // bytes of the database's file
	DBInUse   Points    `json:"db_in_use"`          // bytes of it that defragmentation would keep
	BackupLag Points    `json:"backup_lag_seconds"` // the age of the oldest change that is not in the store
	Revisions Points    `json:"revisions_per_second"`
}

// Points are the values of a series. A missing value is NaN, which is null in JSON.
type Points []float32

// digits is the precision of points in JSON.
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

// TimelineEvent is a notable event.
type TimelineEvent struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`    // one of start, readiness, leader, full_snapshot, restore_test, defragmentation, alarm, trouble, recovery, restore
	Health  string    `json:"health"`  // of what happened: ok, degraded or failed
	Message string    `json:"message"` // a clause
}
