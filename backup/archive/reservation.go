package archive

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
)

const reservationKind = "reservation"

// Margin is how many revisions a reservation is ahead of what was handed out when it was made, and Renewal how many it must be
// ahead still: then another one is made.
const (
	Margin  = 1_000_000_000
	Renewal = Margin / 4
)

// Above is the revision that a restored cluster goes on above, so that none is handed out twice: the reservation, if members have
// kept it ahead of what they handed out, and Margin above the highest known revision otherwise. reserved is 0 if there is none.
func Above(reserved, known int64) int64 {
	if reserved-known >= Renewal/2 { // a member may have been about to renew it
		return reserved
	}
	return max(reserved, known+Margin)
}

// Reservation says that no revision above this one was ever handed out to a client.
type Reservation struct {
	seal.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

func reservationName(revision int64) string {
	return fmt.Sprintf("%s%019d", reservationPrefix, revision)
}

// Reserve writes a reservation. Heading is filled in. store.ErrExists says that there is one of that revision.
func (a *Archive) Reserve(ctx context.Context, reservation Reservation) error {
	reservation.Heading = heading(reservationKind)
	reservation.Created = reservation.Created.UTC().Truncate(time.Second)
	return a.state(ctx, reservationName(reservation.Revision), reservation)
}

// Reserved returns the reservation of the highest revision. store.ErrNotFound says that there is none.
func (a *Archive) Reserved(ctx context.Context) (Reservation, error) {
	highest, err := a.highestReservation(ctx)
	if err != nil {
		return Reservation{}, err
	}
	if highest == "" {
		return Reservation{}, a.named(reservationPrefix, store.ErrNotFound)
	}
	var reservation Reservation
	err = a.statement(ctx, highest, reservationKind, &reservation)
	if err == nil && reservationName(reservation.Revision) != highest {
		err = a.damaged(highest)
	}
	return reservation, err
}

// highestReservation is the name of the one of the highest revision; empty if there is none.
func (a *Archive) highestReservation(ctx context.Context) (highest string, err error) {
	for object, err := range a.store.List(ctx, reservationPrefix, "") {
		if err != nil {
			return "", err
		}
		highest = object.Name
	}
	return highest, nil
}
