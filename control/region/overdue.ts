import { AppError } from '../../shared/errors.ts';

/** A host that is there has not answered in time for work that it may have begun. */
export class Overdue extends AppError {}
