package archive

import (
	"context"
	"fmt"
)

// Told is the last revision that names tell of, in the newest generation of which there is anything; where that has nothing yet, what
// it was begun with. It is for whoever does not believe what lies below the names. They prove nothing, as anybody who may write can
// make them, and that of the last segment does not tell its end.
func (a *Archive) Told(ctx context.Context) (last int64, err error) {
	newest := 0
	for number := 0; ; newest = number {
		if number, err = a.generationAfter(ctx, number); err != nil {
			return 0, err
		}
		if number == 0 {
			break
		}
	}
	last, err = a.toldOf(ctx, newest)
	if err != nil || last > 0 || newest < 2 {
		return last, err
	}
	return a.begunWith(ctx)
}

// toldOf is the last revision that names of a generation tell of; 0 if none does.
func (a *Archive) toldOf(ctx context.Context, generation int) (int64, error) {
	fulls, err := a.fullNames(ctx, generation)
	if err != nil {
		return 0, err
	}
	x, err := a.indexed(ctx, generation)
	if err != nil {
		return 0, err
	}
	listed := Generational{Objects: x.all()}
	for _, name := range fulls {
		listed.Fulls = append(listed.Fulls, KeptFull{Label: name})
	}
	return listed.told(), nil
}

// begunWith is the revision that the newest restore went on at, which reserved what comes above it.
func (a *Archive) begunWith(ctx context.Context) (revision int64, err error) {
	name, err := a.highestReservation(ctx)
	if err != nil || name == "" {
		return 0, err
	}
	if _, err := fmt.Sscanf(name, reservationPrefix+"%d", &revision); err != nil {
		return 0, nil // it is none of ours
	}
	return max(0, revision-Margin), nil
}
